"""Loop and Scan by ONNX's definition, for its evaluator.

Its own Loop (onnx 1.23) makes no round where the condition is left out, and joins rows along
an axis that they have; its Scan knows neither axes nor directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from compiler_worker import reference_ops
from services.contracts.tensors import Array


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


OPS = (Loop, Scan, *reference_ops.OPS)
