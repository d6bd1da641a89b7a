"""One ONNX graph becomes one torch.fx graph; README.md tells how."""

from compiler_worker.onnx_to_fx.importer import graph_module_from_onnx

__all__ = ["graph_module_from_onnx"]
