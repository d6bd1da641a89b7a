"""One ONNX graph becomes one torch.fx graph; see README.md."""

from compiler_worker.onnx_to_fx.importer import graph_module_from_onnx

__all__ = ["graph_module_from_onnx"]
