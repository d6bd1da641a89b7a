"""ONNX's own node tests: every case is right or refused by name; none is wrong."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx.backend.test.case.node import collect_testcases

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from compiler_worker.onnx_to_fx.dtypes import tensor_sharing_memory
from services.contracts.errors import UnsupportedGraphError

# Rounded down from what passes with ONNX 1.23; raise it with every op that is added.
PASSED_CASES = 1280
PASSED_DYNAMIC_CASES = 1130
_HALVES = (torch.float16, torch.bfloat16)


# Right with static shapes; with dynamic ones torch raises while running.
LOUD_WHEN_DYNAMIC = {
    # Reducing an axis that turns out to be empty.
    "test_reduce_max_empty_set",
    "test_reduce_max_empty_set_bool",
    "test_reduce_min_empty_set",
    # A mask that turns out to be shorter than the keys.
    "test_attention_4d_causal_padded_kv_bf16",
    "test_attention_4d_diff_heads_mask4d_padded_kv",
    "test_attention_4d_padded_kv_bf16",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one case: "pass", "unsupported", "wrong" or "raised", and why."""

    op_type: str
    verdict: str
    reason: str = ""


def _outcome(case: Any, model: onnx.ModelProto) -> Outcome:
    op_type = model.graph.node[0].op_type if len(model.graph.node) == 1 else "several"
    reason = ""
    for variant, names in _variants(model, case.data_sets[0][0]):
        try:
            module = graph_module_from_onnx(variant)
        except UnsupportedGraphError as error:
            reason = str(error)
            continue
        try:
            problem = _difference(module, names, case)
        except Exception as error:  # the suite wants an answer or a refusal, not a crash
            return Outcome(op_type, "raised", f"{type(error).__name__}: {error}")
        return Outcome(op_type, "wrong" if problem else "pass", problem)
    return Outcome(op_type, "unsupported", reason)


def _with_dynamic_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every axis of every input named and none given a size."""
    dynamic = onnx.ModelProto()
    dynamic.CopyFrom(model)
    for position, entry in enumerate(dynamic.graph.input):
        for axis, dim in enumerate(entry.type.tensor_type.shape.dim):
            dim.dim_param = f"input{position}_axis{axis}"
    return dynamic


def _variants(
    model: onnx.ModelProto, feeds: list[Any]
) -> Iterator[tuple[onnx.ModelProto, set[str]]]:
    """Yield the model as it is, then with small later inputs as constants.

    The suite feeds shapes, axes and bounds as data; a graph with dynamic shapes needs
    them constant, as every exporter writes them.
    """
    yield model, set()
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    names = set()
    for entry, feed in list(zip(model.graph.input, feeds, strict=True)):
        array = _array(feed)
        if array is not None and array.ndim <= 1 and _is_parameter(model, entry.name):
            fixed.graph.initializer.append(onnx.numpy_helper.from_array(array, entry.name))
            names.add(entry.name)
    if names:
        yield fixed, names


def _array(feed: Any) -> np.ndarray | None:
    """Return a feed as an array; sequences and optionals are none."""
    if isinstance(feed, onnx.TensorProto):
        return onnx.numpy_helper.to_array(feed)
    return np.asarray(feed) if isinstance(feed, np.ndarray | np.generic) else None


def _is_parameter(model: onnx.ModelProto, name: str) -> bool:
    first = model.graph.node[0].input[:1]
    return name not in first or model.graph.node[0].op_type in ("ConstantOfShape", "Range")


def _difference(module: torch.fx.GraphModule, constant: set[str], case: Any) -> str:
    """Run every data set; return "" or what differs."""
    for feeds, wanted in case.data_sets:
        given = [
            tensor_sharing_memory(_array(feed))
            for entry, feed in zip(case.model.graph.input, feeds, strict=True)
            if entry.name not in constant
        ]
        for got, want in zip(module(*given), wanted, strict=True):
            problem = _mismatch(got, _array(want), case)
            if problem:
                return problem
    return ""


def _mismatch(got: torch.Tensor, want: np.ndarray, case: Any) -> str:
    array = got.float().numpy() if got.dtype == torch.bfloat16 else got.numpy()
    dtype = "bfloat16" if got.dtype == torch.bfloat16 else str(array.dtype)
    if dtype != str(want.dtype) or array.shape != want.shape:
        return f"got {dtype}{list(array.shape)}, wanted {want.dtype}{list(want.shape)}"
    if want.dtype == ml_dtypes.bfloat16:
        want = want.astype(np.float32)
    # One operation more or less in 16 bits may move the last bit; the suite allows for none.
    slack = 2 * torch.finfo(got.dtype).eps if got.dtype in _HALVES else 0.0
    try:
        np.testing.assert_allclose(array, want, rtol=max(case.rtol, slack), atol=case.atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return ""


@pytest.fixture(scope="module")
def cases() -> list[Any]:
    """Every case of the suite."""
    with warnings.catch_warnings():
        # The suite itself divides by zero and overflows on purpose while it is made.
        warnings.simplefilter("ignore")
        return list(collect_testcases(None))


@pytest.fixture(scope="module")
def outcomes(cases: list[Any]) -> dict[str, Outcome]:
    """The whole suite with the shapes it declares."""
    return {case.name: _outcome(case, case.model) for case in cases}


@pytest.fixture(scope="module")
def dynamic_outcomes(cases: list[Any]) -> dict[str, Outcome]:
    """The whole suite with every axis dynamic."""
    return {case.name: _outcome(case, _with_dynamic_inputs(case.model)) for case in cases}


def _named(outcomes: dict[str, Outcome], verdict: str) -> dict[str, str]:
    return {name: o.reason for name, o in outcomes.items() if o.verdict == verdict}


def test_no_answer_is_wrong(outcomes: dict[str, Outcome]) -> None:
    assert not _named(outcomes, "wrong")
    assert not _named(outcomes, "raised")


def test_breadth_does_not_shrink(outcomes: dict[str, Outcome]) -> None:
    counts = Counter(outcome.verdict for outcome in outcomes.values())
    assert counts["pass"] >= PASSED_CASES, counts


def test_no_answer_is_wrong_when_every_axis_is_dynamic(
    dynamic_outcomes: dict[str, Outcome],
) -> None:
    assert not _named(dynamic_outcomes, "wrong")
    assert set(_named(dynamic_outcomes, "raised")) == LOUD_WHEN_DYNAMIC
    assert len(_named(dynamic_outcomes, "pass")) >= PASSED_DYNAMIC_CASES


def test_refusals_name_the_op_or_the_value(outcomes: dict[str, Outcome]) -> None:
    for name, reason in _named(outcomes, "unsupported").items():
        assert re.match(r"(\S+-\d+( at node '.*')?|graph): .+", reason), name
