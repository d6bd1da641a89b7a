"""A small model of strings: what the converters of scikit-learn write for text features."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

WORDS = ("red", "green", "", "東京")


def colours() -> onnx.ModelProto:
    """Strings in, numbers and strings out.

    code: int64, each word's place in WORDS, -1 for others; name: the word itself, `?` for others;
    is_same: whether both words of a row are equal.
    """
    places = list(range(len(WORDS)))
    encode = _encoder("code", values_int64s=places, default_int64=-1)
    rename = _encoder("name", values_strings=WORDS, default_string="?")
    nodes = [
        encode,
        rename,
        helper.make_node("Split", ["words"], ["left", "right"], axis=1, num_outputs=2),
        helper.make_node("Equal", ["left", "right"], ["is_same"]),
    ]
    outputs = [
        helper.make_tensor_value_info("code", TensorProto.INT64, ["batch", 2]),
        helper.make_tensor_value_info("name", TensorProto.STRING, ["batch", 2]),
        helper.make_tensor_value_info("is_same", TensorProto.BOOL, ["batch", 1]),
    ]
    inputs = [helper.make_tensor_value_info("words", TensorProto.STRING, ["batch", 2])]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(nodes, "colours", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _encoder(output: str, **values: object) -> onnx.NodeProto:
    return helper.make_node(
        "LabelEncoder", ["words"], [output], domain="ai.onnx.ml", keys_strings=WORDS, **values
    )
