"""Runs a process as it is in an image that lacks the heavy libraries."""

# As they are called where they are installed, and where they are imported.
HEAVY = {
    "onnx",
    "onnxruntime",
    "openvino",
    "ray",
    "tensorrt",
    "tensorrt-rtx-cu13",
    "tensorrt_rtx",
    "torch",
    "triton",
}
# Runs a process's __main__ with some libraries made impossible to import.
RUN_BLOCKED = """
import importlib.abc, runpy, sys
module, *blocked = sys.argv[1:]
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is blocked in this process", name=name)
sys.meta_path.insert(0, Blocker())
sys.argv = [module]
runpy.run_module(module, run_name="__main__")
"""
