"""What ONNX Runtime and the importer's graphs answer, and when two answers are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import torch

from services.contracts.kserve.tensors import Array
from services.engines.torch_runtime.torch_arrays import array_from_tensor, tensor_from_array
from tests.faults.graphs.cases import Case
from tests.faults.graphs.grower import Value

Answers = Sequence[Array]
# Beyond this what rounding did on the way says nothing of a small result.
_LARGEST_SCALE = 100.0


def by_onnxruntime(case: Case) -> list[Answers | None] | str:
    """By setting its answers without optimisations, None where the graph fails at that size.

    A text is why it does not take the graph at all.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # its exceptions share no base below Exception
        return str(error)
    return [_run(session, case.outputs, feeds) for feeds in case.feeds]


def _run(session: Any, outputs: Sequence[str], feeds: Mapping[str, Array]) -> Answers | None:
    try:
        answers: Answers = session.run(list(outputs), dict(feeds))
    except Exception:  # the same
        return None
    return answers


def by_torch(case: Case, graph: Any, setting: int) -> Answers:
    """Of a module that takes inputs by position."""
    feeds = case.feeds[setting]
    with torch.inference_mode():
        outputs = graph(*(tensor_from_array(feeds[spec.name].copy()) for spec in case.specs))
    return [array_from_tensor(output) for output in outputs]


def difference(found: Array, wanted: Array, value: Value) -> str:
    """How an answer differs from another one by more than rounding, or ""."""
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return f"{found.dtype}{list(found.shape)} found, {wanted.dtype}{list(wanted.shape)} wanted"
    if not value.is_float:
        # An integer that rounding decides of (a scale measured in the call) may be the next one.
        far = np.abs(found.astype(np.float64) - wanted.astype(np.float64)) > (value.noise > 0)
    else:
        far = _are_far(found.astype(np.float64), wanted.astype(np.float64), value)
    if not far.any():
        return ""
    place = tuple(np.argwhere(far)[0].tolist())
    return f"{far.sum()} of {far.size} differ, at {list(place)} {found[place]} for {wanted[place]}"


def _are_far(found: Array, wanted: Array, value: Value) -> Array:
    size = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
    scale = max(size, min(value.scale, _LARGEST_SCALE * size))
    # Sums of exact numbers are exact in any order; kernels that transform them (Winograd) err.
    noise = max(value.noise, 1e-6)
    with np.errstate(all="ignore"):
        is_same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        is_near = np.abs(found - wanted) <= noise * (np.abs(wanted) + 0.1 * scale)
    return ~(is_same | is_near)
