"""What is not understood is refused by name while importing, never run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from compiler_worker.master.admission import MAX_OPSET, MIN_OPSET
from compiler_worker.onnx_to_fx import converter_table, graph_module_from_onnx
from services.contracts.errors import UnsupportedGraphError
from tests.unit.compiler_worker.onnx_to_fx.graphs import model


def refusal(graph: onnx.ModelProto) -> UnsupportedGraphError:
    """Import a graph that must be refused; return the error."""
    with pytest.raises(UnsupportedGraphError) as caught:
        graph_module_from_onnx(graph)
    return caught.value


def test_unknown_op() -> None:
    error = refusal(model("g (float[N] x) => (float[N] y) { [guess] y = Frobnicate(x) }"))
    assert (error.op_type, error.node, error.opset) == ("Frobnicate", "guess", 20)


def test_known_op_without_a_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(converter_table.CONVERTERS, ("", "Tanh"))
    error = refusal(model("g (float[N] x) => (float[N] y) { [here] y = Tanh(x) }"))
    assert (error.op_type, error.node) == ("Tanh", "here")
    assert error.reason == "version 13 of the op is not translated"


def test_op_version_nobody_has_read() -> None:
    graph = model("g (float[N] x) => (float[N] y) { y = Relu(x) }", opset=10_000)
    graph.graph.node[0].op_type = "GroupNormalization"
    graph.opset_import[0].version = 18
    assert "version 18" in refusal(graph).reason


def test_nothing_is_translated_that_no_master_has() -> None:
    """Code for versions of ops before the first opset that `models add` takes cannot be reached."""
    translated = {
        (domain, op_type, version)
        for (domain, op_type), rows in converter_table.CONVERTERS.items()
        for version in set().union(*(row.versions for row in rows))
    }
    admitted = set()
    for domain, op_type in converter_table.CONVERTERS:
        opsets = range(1 if domain else MIN_OPSET, MAX_OPSET + 1)
        known = (opset for opset in opsets if onnx.defs.has(op_type, opset, domain))
        schemas = (onnx.defs.get_schema(op_type, opset, domain) for opset in known)
        admitted |= {(domain, op_type, schema.since_version) for schema in schemas}
    assert translated - admitted == set()


def test_unknown_attribute() -> None:
    error = refusal(model("g (float[N] x) => (float[N] y) { y = Relu <slope: float = 0.1> (x) }"))
    assert error.op_type == "Relu"
    assert "'slope'" in error.reason


def test_attribute_of_the_wrong_type() -> None:
    graph = "g (float[N] x) => (float[N] y) { y = Softmax <axis: float = 1.0> (x) }"
    assert "'axis' has type float, wanted int" in refusal(model(graph)).reason


def test_missing_required_attribute() -> None:
    graph = "g (float[N] x) => (float[N] y) { y = Concat(x, x) }"
    assert "'axis' is required" in refusal(model(graph)).reason


def test_unknown_domain() -> None:
    graph = model("g (float[N] x) => (float[N] y) { [fused] y = com.acme.Gelu(x) }")
    graph.opset_import.append(onnx.helper.make_opsetid("com.acme", 1))
    error = refusal(graph)
    assert (error.op_type, error.node, error.opset) == ("com.acme::Gelu", "fused", 1)


@pytest.mark.parametrize("elem_type", ["string", "complex64", "complex128"])
def test_unsupported_input_type(elem_type: str) -> None:
    error = refusal(model(f"g ({elem_type}[N] x) => ({elem_type}[N] y) {{ y = Identity(x) }}"))
    assert "'x'" in error.reason
    assert elem_type.upper() in error.reason


def test_unsupported_cast_target() -> None:
    graph = "g (float[N] x) => (string[N] y) { y = Cast <to: int = 8> (x) }"
    assert "STRING" in refusal(model(graph)).reason


def test_unsupported_initializer_type() -> None:
    graph = "g (float[N] x) => (float[N] y) { y = Identity(x) }"
    error = refusal(model(graph, w=np.zeros(3, np.complex64)))
    assert "'w'" in error.reason


def test_element_type_without_kernels_in_an_op_that_does_not_know_it() -> None:
    error = refusal(model("g (uint32[N] x) => (uint32[N] y) { [sum] y = CumSum(x, x) }"))
    assert (error.op_type, error.node) == ("CumSum", "sum")
    assert error.reason == "element type UINT32 is not translated by this op"


def test_value_that_nobody_produces() -> None:
    error = refusal(model("g (float[N] x) => (float[N] y) { [sum] y = Add(x, w) }"))
    assert error.node == "sum"
    assert "'w'" in error.reason


def test_output_that_nobody_produces() -> None:
    assert "'z'" in refusal(model("g (float[N] x) => (float[N] z) { y = Relu(x) }")).reason


def test_name_defined_twice() -> None:
    graph = "g (float[N] x) => (float[N] y) { y = Relu(x) [again] y = Tanh(x) }"
    error = refusal(model(graph))
    assert (error.op_type, error.node) == ("Tanh", "again")


def test_external_data_that_is_not_loaded() -> None:
    graph = model("g (float[3] x) => (float[3] y) { y = Add(x, w) }", w=np.zeros(3, np.float32))
    tensor = graph.graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, location="weights.bin")
    tensor.ClearField("raw_data")
    error = refusal(graph)
    assert "'w'" in error.reason
    assert "not loaded" in error.reason


def test_initializer_with_too_few_bytes() -> None:
    graph = model("g (float[3] x) => (float[3] y) { y = Add(x, w) }", w=np.zeros(3, np.float32))
    graph.graph.initializer[0].raw_data = b"\0" * 8
    assert "'w'" in refusal(graph).reason


def test_shape_that_is_data_of_the_call() -> None:
    graph = "g (float[N] x, int64[2] s) => (float[A, B] y) { y = Reshape(x, s) }"
    assert "('s') depends on input values" in refusal(model(graph)).reason


def test_input_without_a_rank() -> None:
    graph = model("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    graph.graph.input[0].type.tensor_type.ClearField("shape")
    assert "declares no rank" in refusal(graph).reason


def test_opset_before_the_oldest() -> None:
    error = refusal(model("g (float[N] x) => (float[N] y) { y = Relu(x) }", opset=5))
    assert error.opset == 5
    assert error.reason.startswith("version 1 of the op is not translated; convert the model")


def test_rank_that_would_depend_on_the_call() -> None:
    graph = "g (float[N, M] x) => (float[K] y) { y = Squeeze(x) }"
    assert "without axes" in refusal(model(graph)).reason


def test_output_that_is_not_translated() -> None:
    error = refusal(model("g (float[N] x) => (float[N] y, float[N] z) { [two] y, z = Relu(x) }"))
    assert (error.node, error.reason) == ("two", "only 1 of its outputs are translated")
