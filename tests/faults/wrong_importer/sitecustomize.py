"""Has the compiler's children import Relu as if it did nothing; on the PYTHONPATH of a test."""

import sys

_IMPORTING = ("verdict-one", "export-graph")

if sys.orig_argv[1:3] == ["-m", "compiler_worker"] and sys.orig_argv[3] in _IMPORTING:
    from dataclasses import replace

    from compiler_worker.onnx_to_fx import graph_module_from_onnx
    from compiler_worker.onnx_to_fx.converter_table import CONVERTERS

    assert graph_module_from_onnx, "its import registers the converters"
    rows = CONVERTERS["", "Relu"]
    CONVERTERS["", "Relu"] = [replace(row, convert=lambda op: op.inputs[0]) for row in rows]
