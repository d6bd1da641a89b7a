"""A model as scikit-learn's encoders are exported: columns of strings and of numbers."""

import onnx
from onnx import parser

PORTS = ("C", "Q", "S")
CODES = (10, 13, 19)
TEXT = """
    <ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 3]>
    encoders (string[?, 2] port, float[?, 2] code, float[?, 1] age) => (float[?, 7] scores)
    <int64[1] second = {1}, int64[2] flat = {-1, 3}, int64[2] one = {-1, 1}, float[1] ten = {10}>
    {
        column = ai.onnx.ml.ArrayFeatureExtractor (port, second)
        hot = ai.onnx.ml.OneHotEncoder <cats_strings = ["C", "Q", "S"], zeros = 0> (column)
        ports = Reshape (hot, flat)
        number = Gather <axis = 1> (code, second)
        whole = Cast <to = 7> (number)
        codes = ai.onnx.ml.OneHotEncoder <cats_int64s = [10, 13, 19], zeros = 0> (whole)
        coded = Reshape (codes, flat)
        ages = Div (age, ten)
        scores = Concat <axis = 1> (ports, coded, ages)
    }
"""


def encoders() -> onnx.ModelProto:
    """One of `PORTS` in column 1 of `port`, and of `CODES` in column 1 of `code`."""
    return parser.parse_model(TEXT)
