"""What becomes of one case: a right answer, a refusal while importing, or a fault of ours."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx
import torch

from compiler_worker.master.opset6 import at_opset_7
from compiler_worker.onnx_to_fx import graph_module_from_onnx
from compiler_worker.onnx_to_fx.dtypes import array_sharing_memory, tensor_sharing_memory
from services.contracts.errors import UnsupportedGraphError
from tests.onnx_coverage.cases import SuiteCase

# One operation more or less in 16 bits may move the last bit; the suite allows for none.
_SLACK = {np.float16: 2.0**-9, ml_dtypes.bfloat16: 2.0**-6}
# Ops whose first input already says how large the result is, or which graph makes it.
_RULED_BY_THE_FIRST = (
    "BlackmanWindow",
    "ConstantOfShape",
    "HammingWindow",
    "HannWindow",
    "If",
    "Loop",
    "MelWeightMatrix",
    "Range",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case.

    Attributes:
        verdict: "refused" names the refusal, "wrong" and "raised" must not happen.
        reason: why it did not pass.
        refusal: the error that refused it.
    """

    verdict: Literal["pass", "refused", "wrong", "raised"]
    reason: str = ""
    refusal: UnsupportedGraphError | None = None


def outcome(case: SuiteCase, *, is_dynamic: bool = False, is_exported: bool = False) -> Outcome:
    """Import a case and run its data sets.

    Args:
        case: what to import and feed.
        is_dynamic: leave the size of every input axis open.
        is_exported: run what torch.export makes of the module, with all sizes open.
    """
    model = _with_dynamic_inputs(case.model) if is_dynamic else case.model
    refusal: UnsupportedGraphError | None = None
    for variant, constants in _variants(model, case.data[0][0]):
        try:
            module = graph_module_from_onnx(at_opset_7(variant))
        except UnsupportedGraphError as error:
            # The first one is about the model as it is, the second about what is left of it.
            refusal = error
            continue
        except Exception as error:  # neither an answer nor a refusal
            return Outcome("raised", f"import: {type(error).__name__}: {error}")
        try:
            problem = _difference(module, constants, case, is_exported=is_exported)
        except Exception as error:  # the same
            return Outcome("raised", f"{type(error).__name__}: {error}")
        return Outcome("wrong", problem) if problem else Outcome("pass")
    return Outcome("refused", str(refusal), refusal)


def _with_dynamic_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every axis of every input named and none given a size."""
    dynamic = onnx.ModelProto()
    dynamic.CopyFrom(model)
    # Sizes of computed values say those of the inputs; a master keeps none of them.
    dynamic.graph.ClearField("value_info")
    for position, entry in enumerate(dynamic.graph.input):
        for axis, dim in enumerate(entry.type.tensor_type.shape.dim):
            dim.dim_param = f"input{position}_axis{axis}"
    return dynamic


def _variants(
    model: onnx.ModelProto, feeds: Sequence[Any]
) -> Iterator[tuple[onnx.ModelProto, set[str]]]:
    """Yield the model as it is, then with small later inputs as constants.

    The suite feeds shapes, axes and bounds as data; a graph with dynamic shapes needs
    them constant, as every exporter writes them.
    """
    yield model, set()
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    names = set()
    for entry, feed in zip(model.graph.input, feeds, strict=False):
        if isinstance(feed, np.ndarray) and feed.ndim <= 1 and _is_parameter(model, entry.name):
            fixed.graph.initializer.append(onnx.numpy_helper.from_array(feed, entry.name))
            names.add(entry.name)
    if names:
        yield fixed, names


def _is_parameter(model: onnx.ModelProto, name: str) -> bool:
    first = model.graph.node[0]
    # The nodes of an op written out in other ops are called after it.
    op_types = (first.op_type, first.output[0].partition("_")[0])
    return name not in first.input[:1] or any(kind in _RULED_BY_THE_FIRST for kind in op_types)


def _difference(
    module: torch.fx.GraphModule, constants: set[str], case: SuiteCase, *, is_exported: bool
) -> str:
    """Run every data set; return "" or what differs."""
    weights = {tensor.name for tensor in case.model.graph.initializer}
    names = [entry.name for entry in case.model.graph.input if entry.name not in weights]
    for feeds, wanted in case.data:
        given = [
            _fed(feed) for name, feed in zip(names, feeds, strict=True) if name not in constants
        ]
        runner = _exported(module, given) if is_exported else module
        for got, want in zip(runner(*given), wanted, strict=True):
            problem = mismatch(got, want, case)
            if problem:
                return problem
    return ""


def _exported(module: torch.fx.GraphModule, given: list[torch.Tensor]) -> Any:
    dims = tuple(dict.fromkeys(range(x.dim()), torch.export.Dim.AUTO) for x in given)
    with warnings.catch_warnings():
        # torch's own deprecations inside export are not ours to mend.
        warnings.simplefilter("ignore")
        program = torch.export.export(module, tuple(given), dynamic_shapes=dims, strict=False)
        return program.module()


def _fed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return tensor_sharing_memory(value)
    return [_fed(item) for item in value] if isinstance(value, list) else value


def mismatch(got: Any, want: Any, case: SuiteCase) -> str:
    """Compare one output with what the suite wants.

    Args:
        got: a tensor, or a list of outputs.
        want: an array, a list of arrays, or None for an optional without an element.
        case: has the tolerances, absolute and relative.

    Returns:
        How they differ, "" where they do not.
    """
    if isinstance(want, list) or want is None:
        if not isinstance(got, list | tuple) or want is None or len(got) != len(want):
            return "" if got is want else f"got {got!r}, wanted {want!r}"
        return next(
            filter(None, (mismatch(g, w, case) for g, w in zip(got, want, strict=True))), ""
        )
    # What an element type is outside of a graph is what it becomes as an input.
    wanted = tensor_sharing_memory(np.ascontiguousarray(want).reshape(want.shape))
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        return f"got {got.dtype}{list(got.shape)}, wanted {wanted.dtype}{list(wanted.shape)}"
    array = array_sharing_memory(got)
    # Types below 8 bits are compared as what they mean: two codes may be one number.
    array = array.view(want.dtype) if want.dtype.name.startswith("float4") else array
    return _values_differ(array.astype(want.dtype), want, case)


def _values_differ(got: Any, want: Any, case: SuiteCase) -> str:
    rtol, atol = case.rtol, case.atol
    if want.dtype.kind in "biu" or want.dtype.itemsize == 1:
        rtol = atol = 0.0
    if want.dtype.type.__module__ == "ml_dtypes" or want.dtype == np.float16:
        rtol = max(rtol, _SLACK.get(want.dtype.type, 0.0))
    if want.dtype == np.float32 and np.isfinite(want).any():
        # Where terms cancel, zero is known up to the rounding of the largest of them.
        atol = max(atol, 2.0**-22 * float(np.abs(want[np.isfinite(want)]).max()))
        got, want = got.astype(np.float32), want.astype(np.float32)
    try:
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return ""
