"""Loop, Scan, Slice and MaxPool by ONNX's definition, for its evaluator.

Its own Loop (onnx 1.23) makes no round where the condition is left out, and joins rows along
an axis that they have; its Scan knows neither axes nor directions. Its Slice is
Python's, where a start before the first element, going backwards, gives nothing. Its MaxPool
takes the pads of one axis for those of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_max_pool

from compiler_worker.references import reference_ops
from services.contracts.kserve.tensors import Array


class _Rounds(OpRun):
    body: Any

    def need_context(self) -> bool:
        """Bodies read what is around them."""
        return True

    def _round(self, context: Mapping[str, Array] | None, given: Sequence[Array]) -> list[Array]:
        inputs = dict(context or {}) | dict(zip(self.body.input_names, given, strict=True))
        return list(self._run_body(inputs))


class Loop(_Rounds):
    def _run(self, most: Any, going: Any, *args: Array, context: Any = None, **_: Any) -> Any:
        states, rows, count = list(args), [], 0
        goes = going is None or bool(going)
        while goes and (most is None or count < most):
            given = [np.array(count, np.int64), np.array(goes), *states]
            going, *results = self._round(context, given)
            goes, count = bool(going), count + 1
            states = results[: len(args)]
            rows.append(results[len(args) :])
        if not rows and len(self.body.output_names) > 1 + len(args):
            raise ValueError("rows of no round have no known shape")
        return (*states, *(np.stack(column) for column in zip(*rows, strict=True)))


class Scan(_Rounds):
    def _run(self, *args: Array, context: Any = None, **ways: Any) -> Any:
        count = ways["num_scan_inputs"]
        states, scanned = list(args[:-count]), args[-count:]
        axes = ways.get("scan_input_axes") or [0] * count
        backwards = ways.get("scan_input_directions") or [0] * count
        moved = [np.moveaxis(a, axis, 0) for a, axis in zip(scanned, axes, strict=True)]
        moved = [a[::-1] if back else a for a, back in zip(moved, backwards, strict=True)]
        rows = []
        for each in zip(*moved, strict=True):
            results = self._round(context, [*states, *each])
            states = results[: len(states)]
            rows.append(results[len(states) :])
        if not rows:
            raise ValueError("rows of no round have no known shape")
        return (*states, *(np.stack(column) for column in zip(*rows, strict=True)))


class Slice(OpRun):
    def _run(
        self, x: Array, starts: Array, ends: Array, axes: Any = None, steps: Any = None
    ) -> tuple[Array]:
        axes = range(len(starts)) if axes is None else axes
        steps = [1] * len(starts) if steps is None else steps
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            size, back = x.shape[axis], int(step < 0)
            first, last = (int(n) + size * int(n < 0) for n in (start, end))
            first = min(max(first, 0), size - back)
            last = min(max(last, -back), size - back)
            x = np.take(x, np.arange(first, last, step), axis)
        return (x,)


class MaxPool(op_max_pool.MaxPool):
    def _run(self, x: Array, *args: Any, **ways: Any) -> Any:
        has_pads = ways.get("pads") is not None and ways.get("auto_pad") in (None, "NOTSET")
        # Its own way for strides of one mixes them up; the one for all others does not.
        way = self._max_pool if has_pads else super()._run
        return way(x, *args, **ways)  # type: ignore[no-untyped-call]


OPS = (Loop, MaxPool, Scan, Slice, *reference_ops.OPS)
