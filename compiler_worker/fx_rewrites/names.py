"""Names of the rewrites, apart from their code: build keys hold them, and import no torch."""

from services.contracts.hardware.kinds import Precision

# What these make has kernels on CUDA alone, or is faster there alone.
_CUDA_ONLY = frozenset(
    {
        "activations",
        "biases",
        "channels_last",
        "fp8_products",
        "fused_convolutions",
        "short_attention",
        "single_rows",
    }
)
# What these make is for a graph in eight bits.
_ONE_PRECISION = {"fp8_products": Precision.FP8, "int8_products": Precision.INT8}
# In this order: each works on what the ones before it made.
NAMES = (
    "repeated",
    "casts",
    "int8_products",
    "fp8_products",
    "batch_norms",
    "layer_norms",
    "gelu",
    "attention",
    "truths",
    "projections",
    "biases",
    "activations",
    "short_attention",
    "single_rows",
    "channels_last",
    "fused_convolutions",
    "reshapes",
)


def rewrites_for(device: str, precision: Precision = Precision.FP32) -> tuple[str, ...]:
    """Names of the rewrites that pay on a device, `cpu` or `cuda`, for a graph of one precision."""
    left_out = _CUDA_ONLY if device == "cpu" else frozenset()
    return tuple(
        name
        for name in NAMES
        if name not in left_out and _ONE_PRECISION.get(name, precision) is precision
    )
