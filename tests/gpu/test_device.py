"""The facts of a CUDA device, beside what torch and the driver's own tool say of it."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

from compiler_worker.devices import local_devices, main_device
from services.contracts.hardware.facts import DeviceFacts, Platform
from services.engines.device.device_probe import probe_device

_PROBE = """
import sys
from services.contracts.errors import NotFoundError
from services.contracts.hardware.facts import Platform
from services.engines.device.device_probe import probe_device

print(probe_device().generation)
try:
    print(probe_device(Platform.CUDA).generation)
except NotFoundError as error:
    print(error)
print("torch" in sys.modules)
"""


def probed_in_a_child(**environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_generation_is_the_compute_capability(device: DeviceFacts) -> None:
    major, minor = torch.cuda.get_device_capability()
    assert device.generation == f"cuda-sm{major}{minor}"
    assert (device.parsed_generation.major, device.parsed_generation.minor) == (major, minor)


def test_name_and_memory_are_the_devices(device: DeviceFacts) -> None:
    properties = torch.cuda.get_device_properties(0)
    assert device.name == properties.name
    assert device.memory_gib == round(properties.total_memory / 2**30)
    assert device.memory_gib > 0


def test_the_driver_is_the_kernel_drivers_version(device: DeviceFacts) -> None:
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", device.driver)
    tool = shutil.which("nvidia-smi")
    if tool is None:
        pytest.skip("nvidia-smi is not on PATH: nothing to compare with")
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    told = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    assert device.driver == told[0]


def test_the_toolchain_is_what_is_imported(device: DeviceFacts) -> None:
    import triton

    # A wheel may leave the local part of its version (+cu130) out of its metadata.
    assert torch.__version__.split("+")[0] == device.toolchain["torch"].split("+")[0]
    assert device.toolchain["triton"] == triton.__version__
    assert torch.version.cuda is not None
    assert device.toolchain["cuda"].split(".")[0] == torch.version.cuda.split(".")[0]


def test_the_gpu_is_the_main_device_and_the_cpu_is_there_too(device: DeviceFacts) -> None:
    devices = local_devices()
    assert main_device(devices) == device == devices[Platform.CUDA]
    assert devices[Platform.CPU] == probe_device(Platform.CPU)
    assert devices[Platform.CPU].generation.startswith("cpu-")


def test_probing_needs_no_torch(device: DeviceFacts) -> None:
    assert probed_in_a_child() == [device.generation, device.generation, "False"]


def test_a_process_that_is_shown_no_device_is_a_cpu(device: DeviceFacts) -> None:
    cpu = probe_device(Platform.CPU).generation
    found = probed_in_a_child(CUDA_VISIBLE_DEVICES="")
    refusal = "no CUDA device: libcuda.so.1 is missing or shows no device"
    assert found == [cpu, refusal, "False"]


def test_what_workers_import_ahead_leaves_the_choice_of_devices_to_ray() -> None:
    """CUDA_VISIBLE_DEVICES is set when a replica takes the worker: after these imports."""
    code = """
import os
import services.replica.ray_worker.imports
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import sys
print("torch._inductor.standalone_compile" in sys.modules, sys.modules["torch"].cuda.device_count())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "0"]


def test_a_fork_of_what_workers_import_computes_on_the_device() -> None:
    code = """
import os
from services.replica.ray_worker.fork_server import import_once
import_once()
if os.fork() == 0:
    import torch
    x = torch.full((64, 64), 0.5, device="cuda")
    print(torch.cuda.device_count() > 0, (x @ x).sum().item(), flush=True)
    os._exit(0)
_, status = os.wait()
print(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "65536.0", "0"]
