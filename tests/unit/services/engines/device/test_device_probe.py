"""Facts of devices: from the kernel's files, from a driver, and overridden."""

from pathlib import Path

import pytest

from services.contracts.errors import InvalidRequestError, NotFoundError
from services.contracts.hardware.facts import DeviceFacts, Platform
from services.engines.device import device_probe
from services.engines.device.device_probe import HostFiles, probe_device
from tests.cuda_driver import needs_gcc, run_with_driver

V3 = "sse4_2 ssse3 popcnt avx2 fma bmi2 f16c"
AVX512 = f"{V3} avx512f avx512bw avx512vl avx512dq"
BF16 = f"{AVX512} avx512_vnni avx512_bf16"


def host(folder: Path, flags: str) -> HostFiles:
    cpuinfo, meminfo = folder / "cpuinfo", folder / "meminfo"
    processor = f"model name\t: Some CPU: 3 GHz\nflags\t\t: {flags}\n"
    cpuinfo.write_text(f"processor\t: 0\n{processor}\nprocessor\t: 1\n{processor}\n")
    meminfo.write_text("MemTotal:       25165824 kB\nMemFree:         1 kB\n")
    return HostFiles(cpuinfo=cpuinfo, meminfo=meminfo)


@pytest.fixture
def x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_probe.host_platform, "machine", lambda: "x86_64")


@pytest.mark.parametrize(
    ("flags", "generation"),
    [
        (V3, "cpu-x86_64-v3"),
        (AVX512, "cpu-x86_64-avx512"),
        (BF16, "cpu-x86_64-avx512_bf16"),
        (f"{BF16} amx_tile amx_bf16 amx_int8", "cpu-x86_64-amx"),
        (f"{V3} avx512_bf16", "cpu-x86_64-v3"),
    ],
)
@pytest.mark.usefixtures("x86")
def test_a_cpu_is_known_by_its_flags(tmp_path: Path, flags: str, generation: str) -> None:
    facts = probe_device(Platform.CPU, files=host(tmp_path, flags))
    assert facts.generation == generation
    assert facts.name == "Some CPU: 3 GHz"
    assert facts.memory_gib == 24
    assert facts.driver == ""


@pytest.mark.usefixtures("x86")
def test_a_processor_that_is_too_old_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="x86-64-v2"):
        probe_device(Platform.CPU, files=host(tmp_path, "sse2"))


def test_other_machines_have_one_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_probe.host_platform, "machine", lambda: "aarch64")
    facts = probe_device(Platform.CPU, files=host(tmp_path, ""))
    assert facts.generation == "cpu-aarch64-generic"


def test_an_override_changes_the_generation_alone() -> None:
    real, simulated = probe_device(Platform.CPU), probe_device(override="cpu-x86_64-v2")
    assert simulated == real.model_copy(update={"generation": "cpu-x86_64-v2"})


def test_a_wrong_override_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="generation 'sm90'"):
        probe_device(override="sm90")


def test_this_host_has_its_libraries_in_the_facts() -> None:
    toolchain = probe_device(Platform.CPU).toolchain
    assert {"torch", "onnxruntime", "openvino"} <= set(toolchain)
    assert "cuda" not in toolchain


def test_cuda_is_an_error_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_probe, "first_cuda_device", lambda: None)
    with pytest.raises(NotFoundError, match="no CUDA device"):
        probe_device(Platform.CUDA)


_PROBE = """
from services.engines.device.device_probe import probe_device
print(probe_device().model_dump_json())
import sys
assert "torch" not in sys.modules
"""


_LOAD = """
import os
os.cpu_count = lambda: 16
from services.cli.fleet.gateway_workers import default_workers
from services.engines.device.gpu_busy import gpu_busy_share
print(gpu_busy_share(), default_workers())
"""


def probe_with_driver(folder: Path, init_status: int) -> DeviceFacts:
    return DeviceFacts.from_json(run_with_driver(folder, _PROBE, init_status).encode())


@needs_gcc
def test_a_gpu_is_known_by_its_driver_without_torch(tmp_path: Path) -> None:
    facts = probe_with_driver(tmp_path, init_status=0)
    assert facts.generation == "cuda-sm103"
    assert facts.name == "NVIDIA B300"
    assert facts.memory_gib == 288
    assert facts.driver == "580.95.05"


@needs_gcc
def test_a_driver_that_does_not_start_means_a_cpu(tmp_path: Path) -> None:
    assert probe_with_driver(tmp_path, init_status=100).generation.startswith("cpu-")


@needs_gcc
@pytest.mark.parametrize(
    ("init_status", "utilization_status", "words"),
    [
        (0, 0, "0.37 6"),
        # NVML_ERROR_NOT_SUPPORTED: a part of a GPU, as MIG makes them.
        (0, 3, "None 6"),
        (100, 0, "None 1"),
    ],
)
def test_how_busy_a_gpu_is_and_how_many_gateways_stand_before_it(
    tmp_path: Path, init_status: int, utilization_status: int, words: str
) -> None:
    found = run_with_driver(tmp_path, _LOAD, init_status, utilization_status)
    assert found.split() == words.split()
