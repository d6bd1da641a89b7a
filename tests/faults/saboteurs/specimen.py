"""One kind of model: its graph, how it is asked, and what it can be built in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import numpy_helper, parser

from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, OutputRecipe, Recipe

FLOATS = (Precision.FP32, Precision.BF16, Precision.FP16)
ALL = (*FLOATS, Precision.INT8)
ROWS = {"batch": (1, 4, 8)}
TOKENS = {"batch": (1, 4, 8), "seq": (1, 24, 80)}


@dataclass(frozen=True, kw_only=True)
class Specimen:
    """A model with seeded weights.

    Attributes:
        make: from a seed to the graph.
        sizes: least, usual and largest size by dimension.
        precisions: that some kind builds, or that its rounding can be had for.
    """

    make: Callable[[int], onnx.ModelProto]
    sizes: Mapping[str, tuple[int, int, int]]
    precisions: tuple[Precision, ...] = ALL
    inputs: Mapping[str, InputRecipe] = field(default_factory=dict)
    outputs: Mapping[str, OutputRecipe] = field(default_factory=dict)

    @property
    def bucket(self) -> Bucket:
        """The shapes that it is proven for."""
        ranges = {
            name: DimRange(min=least, opt=usual, max=most)
            for name, (least, usual, most) in self.sizes.items()
        }
        return Bucket(dims=ranges)

    @property
    def recipe(self) -> Recipe:
        """What its owner says of it."""
        return Recipe(inputs=dict(self.inputs), outputs=dict(self.outputs))


class Weights:
    """Draws weights from a seed and keeps them by name."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.arrays: dict[str, Array] = {}

    def normal(self, name: str, *shape: int, scale: float | None = None) -> None:
        """Normal values, by default of a size that keeps that of what they multiply."""
        fan_in = int(np.prod(shape[1:] if len(shape) > 2 else shape[:1]))
        spread = fan_in**-0.5 if scale is None else scale
        self.arrays[name] = (self._rng.standard_normal(shape) * spread).astype(np.float32)

    def around_one(self, name: str, *shape: int) -> None:
        """Scales of a norm."""
        self.arrays[name] = self._rng.uniform(0.5, 1.5, shape).astype(np.float32)

    def model(self, graph: str, opset: int = 20, **constants: object) -> onnx.ModelProto:
        """The graph in text with all weights; floats of Python are float32."""
        header = f'<ir_version: 10, opset_import: ["" : {opset}]>'
        proto: onnx.ModelProto = parser.parse_model(f"{header}\n{graph}")
        arrays = {name: _array(value) for name, value in constants.items()} | self.arrays
        tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        proto.graph.initializer.extend(tensors)
        return proto


def _array(value: object) -> Array:
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array
