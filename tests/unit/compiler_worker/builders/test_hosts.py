"""What this machine may build."""

import pytest

from compiler_worker.builders import hosts
from services.contracts.errors import NotFoundError
from services.contracts.hardware.facts import DeviceFacts, Generation, Platform


def machine_with(monkeypatch: pytest.MonkeyPatch, cuda: str | None) -> None:
    def probe(platform: Platform) -> DeviceFacts:
        if cuda is None:
            raise NotFoundError("no CUDA device")
        return DeviceFacts(generation=cuda, name="x", memory_gib=1)

    monkeypatch.setattr(hosts, "probe_device", probe)


def test_a_gpu_engine_is_built_on_its_own_generation_only(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, "cuda-sm90")
    assert hosts.foreign_cuda_reason(Generation.parse("cuda-sm90")) == ""
    assert hosts.foreign_cuda_reason(Generation.parse("cuda-sm89")) == (
        "it must be built on a cuda-sm89 device; this machine has cuda-sm90"
    )


def test_without_a_gpu_there_is_no_cuda_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, None)
    assert hosts.local_generation(Platform.CUDA) is None
    reason = hosts.foreign_cuda_reason(Generation.parse("cuda-sm89"))
    assert reason.endswith("this machine has no CUDA device")
