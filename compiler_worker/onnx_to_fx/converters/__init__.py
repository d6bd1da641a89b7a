"""The converters, one module per op family; importing a module fills the table."""

from importlib import import_module

FAMILIES = (
    "elementwise.activation",
    "networks.attention",
    "elementwise.binary",
    "elementwise.casting",
    "control.control",
    "networks.convolution",
    "tensors.creation",
    "signals.features",
    "signals.grid_sample",
    "signals.image_regions",
    "tensors.indexing",
    "tensors.layout",
    "networks.linear",
    "elementwise.logic",
    "control.loops",
    "tensors.masking",
    "signals.ngrams",
    "networks.normalization",
    "tensors.optionals",
    "signals.patches",
    "networks.pooling",
    "networks.quantization",
    "networks.quantized_products",
    "networks.recurrent",
    "networks.reduction",
    "refused",
    "signals.resize",
    "tensors.search",
    "tensors.sequences",
    "tensors.shape",
    "signals.spectral",
    "elementwise.unary",
)


def load_converters() -> None:
    """Register every family; a second call does nothing."""
    for family in FAMILIES:
        import_module(f"{__name__}.{family}")
