"""Runs a file in ONNX Runtime at several sizes: those that it takes show which have to be equal."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from services.contracts.hardware.facts import Platform
from services.contracts.kserve.tensors import TensorSpec
from services.engines.onnxruntime_engine import open_session
from services.engines.request_check import Sizes
from services.engines.shapes import zeros_at

if TYPE_CHECKING:
    import onnxruntime

# Rows, and the smallest size of all else: positions may be few, and pictures must not be small.
_SIZES = ((2, 5), (3, 11), (2, 64), (3, 224))
_FATAL_ONLY = 4
_Shape = tuple[int, ...]


class TrialRun:
    """A model file; one that ONNX Runtime refuses computes nothing."""

    def __init__(self, path: Path) -> None:
        """Open nothing yet: most files need no run."""
        self._path = path

    def are_equal(self, apart: Sequence[TensorSpec], together: Sequence[TensorSpec]) -> bool | None:
        """Whether dimensions must have one size; None where it computes them neither way.

        Args:
            apart: the inputs with a name for each dimension.
            together: the same with one name for those that may have to be equal.
        """
        for rows, base in _SIZES:
            if self._shapes(apart, _sizes_at(apart, rows, base)) is not None:
                return False
            if self._shapes(together, _sizes_at(together, rows, base)) is not None:
                return True
        return None

    def output_dims(self, inputs: Sequence[TensorSpec]) -> dict[str, tuple[str | None, ...]]:
        """By output, the dimension of the inputs that each axis is at two runs of other sizes."""
        runs = list(islice(self._runs(inputs), 2))
        if len(runs) < 2:
            return {}
        (first, shapes), (second, others) = runs
        dim_of = {(size, second[name]): name for name, size in first.items()}
        return {
            name: tuple(dim_of.get(sizes) for sizes in zip(shape, others[name], strict=False))
            for name, shape in shapes.items()
        }

    def _runs(self, inputs: Sequence[TensorSpec]) -> Iterator[tuple[Sizes, dict[str, _Shape]]]:
        for rows, base in _SIZES:
            sizes = _sizes_at(inputs, rows, base)
            if (shapes := self._shapes(inputs, sizes)) is not None:
                yield sizes, shapes

    def _shapes(self, inputs: Sequence[TensorSpec], sizes: Sizes) -> dict[str, _Shape] | None:
        """Shapes of all outputs; None where it fails."""
        if self._session is None:
            return None
        from onnxruntime import RunOptions

        options = RunOptions()
        options.log_severity_level = _FATAL_ONLY
        names = [output.name for output in self._session.get_outputs()]
        feeds = {spec.name: zeros_at(spec, sizes) for spec in inputs}
        try:
            found = self._session.run(names, feeds, options)
        except Exception:  # its exceptions share no base below Exception
            return None
        return {n: getattr(a, "shape", ()) for n, a in zip(names, found, strict=True)}

    @cached_property
    def _session(self) -> "onnxruntime.InferenceSession | None":
        try:
            return open_session(str(self._path), Platform.CPU, is_optimised=False)
        except Exception:  # its exceptions share no base below Exception
            return None


def _sizes_at(inputs: Sequence[TensorSpec], rows: int, base: int) -> Sizes:
    """Another size for each dynamic dimension; few rows, which axis 0 mostly is."""
    firsts = {spec.shape[0] for spec in inputs if spec.shape}
    dims = dict.fromkeys(dim for spec in inputs for dim in spec.shape if isinstance(dim, str))
    return {n: place + (rows if n in firsts else base) for place, n in enumerate(dims)}
