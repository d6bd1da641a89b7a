"""Typed precision, applied to the graph before any builder reads it.

fp16 and bf16: `policy` decides which nodes run in the narrow type, `typed` rewrites the graph.
int8 and fp8: `quantised` rounds both sides of products, with scales from a `calibration` set;
`weight_only` rounds weights alone. The types stand in the ONNX graph itself, so every engine kind
compiles the same arithmetic.
"""
