"""Typed precision, applied to the graph before any builder sees it.

`policy` decides which nodes run in the narrow type, `typed` rewrites the graph. The types
stand in the ONNX graph itself, so every engine kind compiles the same arithmetic.
"""
