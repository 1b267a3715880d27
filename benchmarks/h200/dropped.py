"""MaxText's trainer that also prints which share of the (token, expert) pairs its capacity path drops: as `trainer.module`.

    python -m launcher +exp=h200_moe_small_2gpu moe=capacity precision=bf16 trainer.module=benchmarks.h200.dropped

A line for each MoE layer and pass over it. For looking only: the callbacks cost time.
"""

from __future__ import annotations

import runpy
from typing import Any

TRAINER = "maxtext.trainers.pre_train.train"


def count_dropped() -> None:
    """Wraps MaxText 0.2.5's RoutedMoE.generate_masks, which keeps the first `capacity` choices of an expert in each sequence."""
    import math

    import jax
    import jax.numpy as jnp
    from maxtext.layers.moe import RoutedMoE

    original = RoutedMoE.generate_masks

    def counting(self: Any, top_k_indices: Any, softmax_probs: Any) -> Any:
        each = math.ceil(top_k_indices.shape[1] * self.num_experts_per_tok / self.num_experts)
        capacity = int(max(each * self.config.capacity_factor, self.config.capacity_factor))
        chosen = jax.nn.one_hot(top_k_indices, num_classes=self.num_experts, dtype=jnp.int32).sum(axis=(1, 2))
        jax.debug.print(
            "dropped {} of {} by a capacity of {}", jnp.maximum(chosen - capacity, 0).sum(), chosen.sum(), capacity
        )
        return original(self, top_k_indices, softmax_probs)

    RoutedMoE.generate_masks = counting


if __name__ == "__main__":
    count_dropped()
    runpy.run_module(TRAINER, run_name="__main__", alter_sys=True)
