"""Ops against kernels: outcomes, owners, chains."""

from collections.abc import Mapping

import pytest
import torch
from torch.fx import GraphModule, Tracer

from compiler_worker.profiling.accounts import (
    CompiledRun,
    EagerRun,
    eager_ops,
    graph_ops,
    kernel_calls,
)
from compiler_worker.profiling.eager_run import dispatched_ops
from compiler_worker.profiling.inductor_record import FusedKernel
from compiler_worker.profiling.profile_report import OpOutcome
from tests.unit.compiler_worker.profiling.reports import PEAKS

aten = torch.ops.aten

ROWS, COLUMNS = 8, 16
TENSOR_BYTES = ROWS * COLUMNS * 4


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(COLUMNS))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        folded = aten.exp(self.table)
        first = aten.tanh(aten.view(x, [-1, COLUMNS]))
        second = aten.add(first, y)
        third = aten.mul(second, folded)
        again = aten.tanh(aten.view(x, [-1, COLUMNS]))
        aten.cos(y)
        return third, aten.sub(again, y)


class _Tracer(Tracer):
    proxy_buffer_attributes = True


def compiled_run(
    kernels: Mapping[str, set[str]], model: torch.nn.Module | None = None
) -> CompiledRun:
    model = model or _Model()
    module = GraphModule(model, _Tracer().trace(model))
    inputs = torch.ones(ROWS, COLUMNS), torch.ones(ROWS, COLUMNS)
    dispatched = dispatched_ops(module, inputs)
    given = EagerRun(graph=module.graph, dispatched=dispatched, times_s={"add": 1.0, "tanh": 2.0})
    fused = [
        FusedKernel(
            name=name,
            is_extern=name.startswith("aoti"),
            nodes=frozenset(nodes),
            num_bytes=4 * TENSOR_BYTES,
        )
        for name, nodes in kernels.items()
    ]
    times_s = [0.5] * len(fused)
    return CompiledRun(given=given, kernels=fused, times_s=times_s, peaks=PEAKS)


def test_every_op_has_a_fate() -> None:
    ops = {op.name: op for op in graph_ops(compiled_run({"cpp_0": {"tanh", "add", "mul"}}))}
    outcomes = {name: op.outcome for name, op in ops.items()}
    assert outcomes == {
        "exp": OpOutcome.FOLDED,
        "view": OpOutcome.FREE,
        "tanh": OpOutcome.KERNEL,
        "add": OpOutcome.KERNEL,
        "mul": OpOutcome.KERNEL,
        "view_1": OpOutcome.FREE,
        "tanh_1": OpOutcome.SHARED,
        "cos": OpOutcome.UNUSED,
        "sub": OpOutcome.SIMPLIFIED,
    }
    assert ops["tanh_1"].shared_with == "tanh"


def test_a_kernel_has_its_chain_with_what_is_predicted_and_measured() -> None:
    found = compiled_run({"cpp_0": {"tanh", "add", "mul"}})
    (kernel,) = kernel_calls(found, graph_ops(found))
    assert kernel.ops == ("tanh", "add", "mul")
    assert (kernel.num_chain_ops, kernel.num_side_inputs) == (3, 1)
    assert kernel.predicted_gain == pytest.approx(7 / 3)
    # The row that is multiplied by is moved too, and is no tensor of the chain's size.
    assert kernel.eager_bytes == 7 * TENSOR_BYTES + COLUMNS * 4
    assert kernel.measured_gain == kernel.eager_bytes / (4 * TENSOR_BYTES)
    assert (kernel.eager_time_s, kernel.time_s) == (3.0, 0.5)
    assert kernel.roofline_share == pytest.approx(4 * TENSOR_BYTES / 1e8 / 0.5)


def test_ops_side_by_side_are_no_chain() -> None:
    found = compiled_run({"cpp_0": {"tanh", "cos"}})
    (kernel,) = kernel_calls(found, graph_ops(found))
    assert (kernel.chain, kernel.predicted_gain) == (("tanh", "cos"), None)


def test_an_op_of_several_kernels_counts_in_a_library_s_or_else_in_the_first() -> None:
    found = compiled_run({"cpp_0": {"tanh", "add"}, "aoti_1": {"add"}, "cpp_2": {"tanh"}})
    ops = graph_ops(found)
    assert {op.name: op.kernels for op in ops if op.kernels} == {"tanh": (0, 2), "add": (1, 0)}
    first, library, last = kernel_calls(found, ops)
    assert (first.eager_bytes, library.eager_bytes) == (2 * TENSOR_BYTES, 3 * TENSOR_BYTES)
    assert (last.eager_bytes, last.measured_gain) == (0, None)
    assert first.predicted_gain is not None
    assert library.predicted_gain is None


def test_eager_ops_say_what_they_became() -> None:
    ops = {op.name: op for op in eager_ops(compiled_run({}).given)}
    assert ops["add"].dispatched == ("aten.add.Tensor",)
    assert (ops["add"].num_bytes, ops["add"].time_s) == (3 * TENSOR_BYTES, 1.0)
    assert ops["mul"].time_s is None


class _Products(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        active = aten.relu(aten.add(aten.mm(x, aten.t(y)), 1.0))
        result: torch.Tensor = aten.tanh(aten.mm(active, x))
        return result


def test_a_product_is_the_library_s_call_that_is_named_after_what_follows() -> None:
    run = compiled_run({"cpp_0": {"relu"}, "aoti_1": {"relu"}, "cpp_2": {"tanh"}}, _Products())
    ops = graph_ops(run)
    # Nothing says who computes the second: its follower's kernel is no library's.
    assert {op.name: op.kernels for op in ops if op.outcome is not OpOutcome.FREE} == {
        "mm": (1,),
        "add": (1,),
        "relu": (1, 0),
        "mm_1": (),
        "tanh": (2,),
    }
    _, library, _ = kernel_calls(run, ops)
    assert library.chain == ("mm", "add", "relu")
    assert library.num_flops == 2 * ROWS * COLUMNS * ROWS
