"""Stands where Transformer Engine 2.20's compiled binding would: enough to trace and lower its operations, never to run one.

TE's Python part asks its binding for enumerations, for the version of CUDA's libraries, and for the sizes of workspaces;
the operations themselves are custom calls by name, which XLA's compiler does not look into. The values of the
enumerations are the binding's own (transformer_engine/common/include and jax/csrc/extensions). Workspaces are those that
matter for memory: a grouped GEMM's set-up as measured with the real binding (404, 992 and 3,200 bytes for 1, 8 and 32
experts), 1 MiB for fused attention (cuDNN would have to be asked; its own is not seen here).
"""

from __future__ import annotations

import enum
from typing import Any

ENUMERATIONS = {
    "DType": "kByte=0 kInt32=2 kInt64=3 kFloat32=4 kFloat16=5 kBFloat16=6 kFloat8E4M3=7 kFloat8E5M2=8 kFloat8E8M0=9 "
    "kFloat4E2M1=10",
    "JAXX_Collective_Op": "NONE=0 ALL_GATHER=1 REDUCE_SCATTER=2",
    "JAXX_Quantize_Layout": "ROWWISE=0 COLWISE=1 ROWWISE_COLWISE=2",
    "JAXX_Routing_Map_Format": "BYTEMAP=0 BITMAP_U8=1",
    "JAXX_Scaling_Mode": "NO_SCALING=0 DELAYED_TENSOR_SCALING=1 MXFP8_1D_SCALING=2 CURRENT_TENSOR_SCALING=3 "
    "NVFP4_1D_SCALING=4 NVFP4_2D_SCALING=5",
    "JAXX_Score_Function": "SIGMOID=0 SOFTMAX=1 SQRTSOFTPLUS=2",
    "NVTE_Activation_Type": "GELU=0 GEGLU=1 GLU=2 SILU=3 SWIGLU=4 RELU=5 REGLU=6 QGELU=7 QGEGLU=8 SRELU=9 SREGLU=10 "
    "CLAMPED_SWIGLU=11",
    "NVTE_Bias_Type": "NVTE_NO_BIAS=0 NVTE_PRE_SCALE_BIAS=1 NVTE_POST_SCALE_BIAS=2",
    "NVTE_Fused_Attn_Backend": "NVTE_No_Backend=-1 NVTE_F16_arbitrary_seqlen=1 NVTE_FP8=2",
    "NVTE_Mask_Type": "NVTE_NO_MASK=0 NVTE_PADDING_MASK=1 NVTE_CAUSAL_MASK=2 NVTE_PADDING_CAUSAL_MASK=3 "
    "NVTE_CAUSAL_BOTTOM_RIGHT_MASK=4 NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK=5",
    "NVTE_Norm_Type": "LayerNorm=0 RMSNorm=1",
    "NVTE_QKV_Format": "NVTE_SBHD=0 NVTE_BSHD=1 NVTE_THD=2 NVTE_QKV_Format_NOT_SET=8",
    "NVTE_QKV_Layout": "NVTE_BS3HD=5 NVTE_BSHD_BS2HD=7 NVTE_BSHD_BSHD_BSHD=9 NVTE_T3HD=10 NVTE_THD_T2HD=12 "
    "NVTE_THD_THD_THD=14 NVTE_QKV_Layout_NOT_SET=26",
    "NVTE_Softmax_Type": "NVTE_VANILLA_SOFTMAX=0 NVTE_OFF_BY_ONE_SOFTMAX=1 NVTE_LEARNABLE_SOFTMAX=2",
}
"""Enumeration -> its members and their values."""

ATTENTION_WORKSPACE_BYTES = 1 << 20
COMPUTE_CAPABILITY = 100
"""Of the GPU that is compiled for, major x 10 + minor; aot_engine.py sets it before TE is imported."""


def _members(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in (word.split("=") for word in text.split())}


for _name, _text in ENUMERATIONS.items():
    _enumeration: Any = enum.IntEnum(_name, _members(_text))  # type: ignore[misc]
    globals()[_name] = _enumeration
    globals().update(_enumeration.__members__)  # the binding exports the members too


def registrations() -> dict[str, Any]:
    """The custom calls that the binding implements: none, XLA is told to take their names on trust."""
    return {}


def get_device_compute_capability(gpu_id: int = 0) -> int:  # noqa: ARG001
    """Of the GPU that is compiled for."""
    return COMPUTE_CAPABILITY


def get_cublasLt_version() -> int:  # noqa: N802
    """13.8.2, of CUDA 13: what TE 2.20 asks for before it takes its grouped GEMM."""
    return 130802


def get_cuda_version() -> int:
    """13.0."""
    return 13000


def get_cudnn_version() -> int:
    """9.19.0."""
    return 91900


def get_cudnn_frontend_version() -> int:
    """1.25.0."""
    return 12500


def get_num_compute_streams() -> int:
    """TE's own default."""
    return 4


def get_cgemm_num_max_streams() -> int:
    """TE's own default."""
    return 3


def nvte_built_with_cublasmp() -> bool:
    """PyPI's build has no cuBLASMp."""
    return False


def is_collective_gemm_with_cublasmp() -> bool:
    """PyPI's build has no cuBLASMp."""
    return False


def is_non_nt_fp8_gemm_supported() -> bool:
    """True from Blackwell on."""
    return COMPUTE_CAPABILITY >= 100


def get_grouped_gemm_setup_workspace_size(groups: int) -> int:
    """Bytes; a line through the three sizes that the real binding gave."""
    return 256 + 92 * groups if groups > 1 else 404


def get_fused_attn_backend(*_: Any) -> tuple[Any, str]:
    """cuDNN's kernel for 16-bit inputs of any length, and no complaint."""
    return globals()["NVTE_F16_arbitrary_seqlen"], ""


def get_fused_attn_fwd_workspace_sizes(*_: Any) -> tuple[tuple[int], Any]:
    """Shape and type of the forward pass's workspace."""
    return (ATTENTION_WORKSPACE_BYTES,), globals()["kByte"]


def get_fused_attn_bwd_workspace_sizes(*_: Any) -> tuple[tuple[int], Any]:
    """Shape and type of the backward pass's workspace."""
    return (ATTENTION_WORKSPACE_BYTES,), globals()["kByte"]


def get_dbias_quantize_workspace_sizes(rows: int, columns: int, *_: Any) -> tuple[tuple[tuple[int, int], Any]]:
    """One float32 row of partial sums for each 128 rows."""
    return ((((rows + 127) // 128, columns), globals()["kFloat32"]),)


get_dact_dbias_quantize_workspace_sizes = get_dbias_quantize_workspace_sizes


def nvte_get_qkv_format(layout: Any) -> Any:
    """Packed sequences (thd) or padded ones (bshd), by the layout's name."""
    return globals()["NVTE_THD" if "THD" in layout.name or "T3HD" in layout.name else "NVTE_BSHD"]


def ep_handle_mem_size(top_k: int, alignment: int = 0) -> int:
    """Bytes of an expert exchange's handle; aot_engine.py puts the formula here once the sizes are known."""
    raise RuntimeError(f"asked for the exchange's handle (top {top_k}, alignment {alignment}) before it was set up")


def release_ep_resources() -> None:
    """Nothing is held."""


def release_ep_resources_at_exit() -> None:
    """Nothing is held."""


def set_ep_bootstrap_params(*_: Any, **__: Any) -> None:
    """No communicator is started."""


def initialize_cgemm_communicator(*_: Any) -> None:
    """No communicator is started."""
