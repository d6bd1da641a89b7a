"""Who may import whom: the layers, and each process without the libraries of the others."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Imports every module of a package with some libraries made impossible to import.
IMPORT_ALL = """
import importlib, importlib.abc, pkgutil, sys
package, kernels, *blocked = sys.argv[1:]
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is blocked in this process", name=name)
sys.meta_path.insert(0, Blocker())
root = importlib.import_module(package)
for module in pkgutil.walk_packages(root.__path__, package + "."):
    if not module.name.endswith(".__main__") and module.name not in kernels.split(","):
        importlib.import_module(module.name)
        print(module.name)
"""
HEAVY = ("torch", "triton", "ray", "onnx", "onnxruntime", "openvino", "tensorrt", "tensorrt_rtx")
# Imported where code is generated, and by no other module: the source of GPU kernels, and a pass
# of Inductor's, whose tracer looks whether there is a tensorrt.
KERNELS = (
    "compiler_worker.builders.packed_convolutions",
    "compiler_worker.fx_rewrites.attention_kernel",
)
BLOCKED = {
    "services.contracts": (*HEAVY, "grpc", "google"),
    "services.telemetry": (*HEAVY, "grpc"),
    "services.gateway": HEAVY,
    "services.grpc_server": (*HEAVY, "google", "pydantic", "prometheus_client"),
    "services.pb": HEAVY,
    "compiler_worker": ("ray", "grpc", "tensorrt", "tensorrt_rtx", "triton"),
    "services.engines": ("ray", "grpc", "tensorrt", "tensorrt_rtx", "triton"),
    "services.replica": ("tensorrt", "tensorrt_rtx", "triton"),
    "services.controller": ("tensorrt", "tensorrt_rtx", "triton"),
}


@pytest.mark.parametrize("package", BLOCKED)
def test_a_package_imports_without_the_libraries_of_others(package: str) -> None:
    kernels = [name for name in KERNELS if name.startswith(f"{package}.")]
    command = [sys.executable, "-c", IMPORT_ALL, package, ",".join(kernels), *BLOCKED[package]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    files = ROOT.joinpath(*package.split(".")).rglob("*.py")
    modules = [path for path in files if path.name not in ("__init__.py", "__main__.py")]
    assert len(done.stdout.split()) >= len(modules) - len(kernels), (
        "a module was not found by the walk"
    )


def test_the_blocker_blocks() -> None:
    command = [sys.executable, "-c", IMPORT_ALL, "services.contracts", "", "numpy"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode != 0
    assert "numpy is blocked in this process" in done.stderr


def test_the_layers_hold() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter, "--no-cache"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
