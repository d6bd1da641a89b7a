"""Options of single kinds of engines, as a recipe has them."""

from pydantic import Field

from services.contracts.model.document import Document


class TensorrtOptions(Document):
    """What TensorRT may take to find faster kernels.

    Attributes:
        optimization_level: 0 (a quick build) to 5 (the longest search); None leaves it to the
            library, which takes 3.
        workspace_gib: memory of the device that a kernel may use beside its tensors; None leaves
            all of it.
    """

    optimization_level: int | None = Field(default=None, ge=0, le=5)
    workspace_gib: float | None = Field(default=None, gt=0)


class InductorOptions(Document):
    """What Inductor may take to find faster kernels.

    Attributes:
        max_autotune: write a product in several ways, time them on the building machine and take
            the fastest; builds then take some times as long.
    """

    max_autotune: bool = False
