"""Runs a file in ONNX Runtime at several sizes: those that it takes show which have to be equal."""

import math
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from compiler_worker.children.requests import TrialRequest
from compiler_worker.memory import has_room_for
from services.contracts.hardware.facts import Platform
from services.contracts.kserve.tensor_spec import TensorSpec
from services.engines.onnxruntime_engine import open_session
from services.engines.request_check import Sizes
from services.engines.shapes import put_first, shape_at, zeros_at

if TYPE_CHECKING:
    import onnxruntime

# Rows, and the smallest size of all else: positions may be few, and pictures must not be small.
TRIAL_SIZES = ((2, 5), (3, 11), (2, 64), (3, 224))
# A hundred pictures of the largest size; five axes of that size would be thousands of gigabytes.
_MAX_ELEMENTS = 2**24
_FATAL_ONLY = 4
Inputs = tuple[TensorSpec, ...]
_Shape = tuple[int, ...]


class TrialRun:
    """A model file; one that ONNX Runtime refuses computes nothing."""

    def __init__(self, request: TrialRequest) -> None:
        self._request = request

    def computes(self, inputs: Inputs, at: tuple[int, int]) -> bool:
        """Whether it does at one of `TRIAL_SIZES`, with a size of its own for each name."""
        return self._shapes(inputs, _sizes_at(inputs, *at)) is not None

    def output_dims(self, inputs: Inputs) -> dict[str, tuple[str | int | None, ...]]:
        """By output, what each axis is, as in `TrialResult`."""
        runs = list(islice(self._runs(inputs), 2))
        if len(runs) < 2:
            return {}
        (first, shapes), (second, others) = runs
        dim_of = {(size, second[name]): name for name, size in first.items()}
        return {
            name: tuple(
                one if one == other else dim_of.get((one, other))
                for one, other in zip(shape, others[name], strict=False)
            )
            for name, shape in shapes.items()
        }

    def _runs(self, inputs: Inputs) -> Iterator[tuple[Sizes, dict[str, _Shape]]]:
        for at in TRIAL_SIZES:
            sizes = _sizes_at(inputs, *at)
            if (shapes := self._shapes(inputs, sizes)) is not None:
                yield sizes, shapes

    def _shapes(self, inputs: Inputs, sizes: Sizes) -> dict[str, _Shape] | None:
        """Shapes of all outputs; None where it fails."""
        num_elements = sum(math.prod(shape_at(spec, sizes)) for spec in inputs)
        if num_elements > _MAX_ELEMENTS or self._session is None:
            return None
        from onnxruntime import RunOptions

        options = RunOptions()
        options.log_severity_level = _FATAL_ONLY
        names = [output.name for output in self._session.get_outputs()]
        try:
            feeds = {spec.name: zeros_at(spec, sizes) for spec in inputs}
            for name, known in self._request.choices.items():
                put_first(feeds[name], known)
            found = self._session.run(names, feeds, options)
        except Exception:  # its exceptions share no base below Exception
            return None
        # Maps come as a list, one for each row.
        shapes = (a.shape if hasattr(a, "shape") else (len(a),) for a in found)
        return dict(zip(names, shapes, strict=True))

    @cached_property
    def _session(self) -> "onnxruntime.InferenceSession | None":
        if not has_room_for(self._request.num_bytes):
            return None
        try:
            return open_session(str(self._request.path), Platform.CPU, is_optimised=False)
        except Exception:  # its exceptions share no base below Exception
            return None


def _sizes_at(inputs: Inputs, rows: int, base: int) -> Sizes:
    """Another size for each dynamic dimension; few rows, which axis 0 mostly is."""
    firsts = {spec.shape[0] for spec in inputs if spec.shape}
    dims = dict.fromkeys(dim for spec in inputs for dim in spec.shape if isinstance(dim, str))
    return {n: place + (rows if n in firsts else base) for place, n in enumerate(dims)}
