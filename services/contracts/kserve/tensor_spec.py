"""What a model's tensors look like, for who reads documents and needs no numpy."""

from collections.abc import Sequence

from services.contracts.errors import InvalidRequestError
from services.contracts.model.document import Document


class TensorSpec(Document):
    """Name, datatype and shape of a model's input or output.

    Attributes:
        name: as in the ONNX graph.
        datatype: KServe v2 name, for example INT64.
        shape: a number for a fixed dimension, its name for a dynamic one.
    """

    name: str
    datatype: str
    shape: tuple[int | str, ...]

    @property
    def wire_shape(self) -> tuple[int, ...]:
        """The shape with -1 for each dynamic dimension, as KServe v2 writes it."""
        return tuple(-1 if isinstance(dim, str) else dim for dim in self.shape)

    def check_shape(self, shape: Sequence[int]) -> None:
        """Raise InvalidRequestError when a concrete shape does not fit this spec."""
        if len(self.shape) == len(shape):
            for want, got in zip(self.shape, shape, strict=True):
                if want != got and not isinstance(want, str):
                    break
            else:
                return
        raise InvalidRequestError(
            f"unexpected shape for input '{self.name}': expected {list(self.wire_shape)}, "
            f"got {list(shape)}"
        )
