"""Lets Transformer Engine's Python part be traced for a GPU that is not here: its binding is the one beside this file.

Nothing of the launcher is imported. Seen to give XLA's memory to the last digit that the compiled binding gives (DeepSeek-V3,
128 GB200), for TE 2.20; it replaces private functions of TE, so another release may need another stand-in.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).resolve().parent)


def installed() -> bool:
    """Whether this Python has TE's Python part (the small transformer_engine wheel, or a whole build)."""
    return importlib.util.find_spec("transformer_engine") is not None


def load(compute_capability: int) -> None:
    """Import TE with the stand-in as its binding, as on a GPU of that compute capability (major x 10 + minor)."""
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # TE then looks for no shared library
    if HERE not in sys.path:
        sys.path.insert(0, HERE)
    binding = importlib.import_module("transformer_engine_jax")
    binding.COMPUTE_CAPABILITY = compute_capability  # type: ignore[attr-defined]
    importlib.import_module("transformer_engine.common").load_framework_extension = (  # type: ignore[attr-defined]
        lambda _framework: None
    )
    importlib.import_module("transformer_engine.jax")
    module: Any
    for name, module in list(sys.modules.items()):
        if name.startswith("transformer_engine.jax") and hasattr(module, "get_device_compute_capability"):
            module.get_device_compute_capability = lambda _gpu_id=0: compute_capability


def handle_bytes(exchange: Any, top_k: int) -> int:
    """Upper bound in bytes of NCCL EP's handle for one NVLink domain, from its high-throughput layout (nccl_ep.cc, HtBlockLayout).

    t tokens sent and r rows received a rank, n ranks, e experts here of E: 67.3 MB for the article's.
    """
    t, r = exchange.max_tokens_per_rank, exchange.recv_capacity_per_rank
    n, e = exchange.ep_size, exchange.num_local_experts
    maps = r * e + 9 * t * n + 4 * t * exchange.num_experts
    routes = 8 * (t + r) * top_k
    return int(maps + routes + (1 << 20))


class Exchange:
    """What MaxText set TE's expert exchange up with; `sizes` is None until it did (or for another expert path)."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] | None = None
        self.top_k: set[int] = set()

    def install(self, mesh: Any) -> None:
        """Replace TE's bootstrap, which would start NCCL, by one that only notes the sizes."""
        operations = importlib.import_module("transformer_engine.jax.cpp_extensions.ep")
        binding = importlib.import_module("transformer_engine_jax")
        ranks = mesh.shape["expert"]

        def bootstrap(
            *, num_experts: int, max_tokens_per_rank: int, recv_capacity_per_rank: int, hidden_dim: int, **_: Any
        ) -> None:
            config = operations.EpConfig(
                world_size=mesh.size,
                rank=0,
                ep_size=ranks,
                num_ep_groups=mesh.size // ranks,
                num_experts=num_experts,
                num_local_experts=num_experts // ranks,
                max_tokens_per_rank=max_tokens_per_rank,
                recv_capacity_per_rank=recv_capacity_per_rank,
                hidden_dim=hidden_dim,
            )
            operations.set_ep_config(config)
            self.sizes = dataclasses.asdict(config)

        def handle(top_k: int, _alignment: int = 0) -> int:
            self.top_k.add(int(top_k))
            return handle_bytes(operations.get_ep_config(), top_k)

        importlib.import_module("transformer_engine.jax.ep").ep_bootstrap = bootstrap  # type: ignore[attr-defined]
        binding.ep_handle_mem_size = handle  # type: ignore[attr-defined]
