"""Names of the rewrites, apart from their code: build keys hold them, and import no torch."""

# What these make has kernels on CUDA alone, or is faster there alone.
_CUDA_ONLY = frozenset(
    {
        "activations",
        "biases",
        "channels_last",
        "fused_convolutions",
        "short_attention",
        "single_rows",
    }
)
# What these make is for a graph in int8.
_INT8_ONLY = frozenset({"int8_products"})
# In this order: each works on what the ones before it made.
NAMES = (
    "repeated",
    "casts",
    "int8_products",
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


def rewrites_for(device: str, *, is_int8: bool = False) -> tuple[str, ...]:
    """Names of the rewrites that pay on a device, `cpu` or `cuda`, for a graph of one precision."""
    left_out = _CUDA_ONLY if device == "cpu" else frozenset()
    return tuple(n for n in NAMES if n not in left_out and (is_int8 or n not in _INT8_ONLY))
