"""The converters, one module per op family; importing a module fills the table."""

from importlib import import_module

FAMILIES = (
    "activation",
    "attention",
    "binary",
    "convolution",
    "creation",
    "indexing",
    "layout",
    "linear",
    "logic",
    "normalization",
    "pooling",
    "recurrent",
    "reduction",
    "resize",
    "rotary",
    "sampling",
    "selection",
    "shape",
    "unary",
)


def load_converters() -> None:
    """Register every family; a second call does nothing."""
    for family in FAMILIES:
        import_module(f"{__name__}.{family}")
