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
# In this order: each sees what the ones before it made.
NAMES = (
    "repeated",
    "casts",
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


def rewrites_for(device: str) -> tuple[str, ...]:
    """Names of the rewrites that pay on a device, `cpu` or `cuda`."""
    return tuple(name for name in NAMES if device != "cpu" or name not in _CUDA_ONLY)
