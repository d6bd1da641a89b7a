"""A dynamic dimension that the file left unnamed, and what it was taken for."""

from dataclasses import dataclass

# Said once for all of a model.
OTHERWISE = (
    "to call dimensions otherwise, or to tie or part them, name them in the file "
    "(torch.onnx.export: dynamic_shapes)"
)


@dataclass(frozen=True, kw_only=True)
class NamedDim:
    """What is reported of it when its model is added.

    Attributes:
        places: `input[axis]` of each.
        basis: what it was concluded from.
    """

    name: str
    places: tuple[str, ...]
    basis: str

    @property
    def words(self) -> str:
        """What it is, and why."""
        return f"took '{self.name}' for {', '.join(self.places)}, unnamed in the file: {self.basis}"
