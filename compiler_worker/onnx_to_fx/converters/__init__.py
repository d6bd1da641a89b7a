"""The converters, one module per op family; importing a module fills the table."""

from importlib import import_module

FAMILIES = (
    "activation",
    "attention",
    "binary",
    "casting",
    "control",
    "convolution",
    "creation",
    "features",
    "indexing",
    "layout",
    "linear",
    "logic",
    "loops",
    "ngrams",
    "normalization",
    "optionals",
    "patches",
    "pooling",
    "quantization",
    "quantized_products",
    "recurrent",
    "reduction",
    "refused",
    "regions",
    "resize",
    "sampling",
    "scan",
    "search",
    "selection",
    "sequences",
    "shape",
    "spectral",
    "training",
    "unary",
)


def load_converters() -> None:
    """Register every family; a second call does nothing."""
    for family in FAMILIES:
        import_module(f"{__name__}.{family}")
