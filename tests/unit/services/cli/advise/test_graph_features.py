"""Features of a graph: its class, and the remarks that it gets."""

import pytest
from onnx import parser

from compiler_worker.builders.expected_speed import GraphClass
from services.cli.advise.graph_features import graph_class, graph_remarks
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.manifest import MasterRecord
from tests.conformance.tiny_model import master_record, tiny_model

EMPTY = parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float y) {}'
)


def master(inputs: dict[str, tuple[int | str, ...]], outputs: dict[str, int]) -> MasterRecord:
    """Ids and more in; scores of so many classes at each position out."""
    made = [TensorSpec(name=n, datatype="INT64", shape=shape) for n, shape in inputs.items()]
    out = [TensorSpec(name=n, datatype="FP32", shape=("b", "s", k)) for n, k in outputs.items()]
    return master_record().model_copy(update={"inputs": tuple(made), "outputs": tuple(out)})


@pytest.mark.parametrize(
    ("flops_by_op", "wanted"),
    [
        ({"Conv": 9e9, "Gemm": 1e9}, GraphClass.CONVOLUTIONS),
        ({"Conv": 1e9, "MatMul": 4e9, "Gemm": 4e9}, GraphClass.DENSE),
        ({"LSTM": 5e9, "GRU": 4e9, "MatMul": 6e9}, GraphClass.RECURRENT),
        ({"Conv": 9e6, "Gemm": 1e6}, GraphClass.SMALL),
        ({}, GraphClass.OTHER),
    ],
)
def test_the_class_is_what_most_flops_are_of(
    flops_by_op: dict[str, float], wanted: GraphClass
) -> None:
    assert graph_class(EMPTY, flops_by_op) is wanted


def test_products_of_what_was_computed_are_attention() -> None:
    assert graph_class(tiny_model(), {"MatMul": 1e9}) is GraphClass.ATTENTION
    weighted = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[2, 2] x) => (float[2, 2] y)'
        " <float[2, 2] w = {1, 2, 3, 4}> { y = MatMul (x, w) }"
    )
    assert graph_class(weighted, {"MatMul": 1e9}) is GraphClass.DENSE


def test_an_encoder_gets_no_remark() -> None:
    assert not list(graph_remarks(tiny_model(), master_record()))


def test_a_decoder_with_caches_is_for_an_llm_server() -> None:
    record = master(
        {"ids": ("b", "s"), "past_key_values.0.key": ("b", 4, "t", 8)},
        {"logits": 32000, "present.0.key": 8},
    )
    (words,) = graph_remarks(EMPTY, record)
    assert words.startswith("Smelt is the wrong tool: a decoder with 1 caches")
    assert "docs/how-to/clients/front-a-server.md" in words


@pytest.mark.parametrize(("num_classes", "is_told"), [(32000, True), (9, False)])
def test_scores_of_a_vocabulary_may_be_a_language_models(num_classes: int, is_told: bool) -> None:
    found = list(graph_remarks(EMPTY, master({"ids": ("b", "s")}, {"logits": num_classes})))
    assert [words.startswith("it scores 32000 tokens") for words in found] == [True] * is_told


def test_control_flow_and_eight_bits_are_told() -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (bool c, float[2] x, float s, uint8 z)'
        " => (float[2] y) {"
        " q = QuantizeLinear (x, s, z)"
        " d = DequantizeLinear (q, s, z)"
        " y = If (c) <then_branch = t () => (float[2] a) { a = Neg (d) },"
        " else_branch = e () => (float[2] b) { b = Abs (d) }> }"
    )
    flow, eight = graph_remarks(model, master_record())
    assert flow.startswith("control flow (1 If)")
    assert eight.startswith("quantised already (2 ops)")
