"""Library versions without imports."""

from importlib import metadata

import pytest

from services.contracts.hardware.facts import Platform
from services.engines.device import toolchain
from services.engines.device.toolchain import installed_toolchain, installed_version, missing_reason


def test_versions_keep_their_local_suffix() -> None:
    assert installed_version("torch") == metadata.version("torch")


def test_a_library_is_found_under_any_of_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"tensorrt-rtx-cu12": "1.2", "tensorrt-cu12": "10.9"}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(toolchain.metadata, "version", version)
    assert installed_toolchain(Platform.CPU) == {"tensorrt_rtx": "1.2", "tensorrt": "10.9"}
    assert missing_reason("tensorrt_rtx") == ""
    assert missing_reason("openvino") == "the Python package openvino is not installed"


def test_the_cuda_runtime_counts_on_cuda_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.metadata, "version", lambda name: "13.0.48")
    assert "cuda" in installed_toolchain(Platform.CUDA)
    assert "cuda" not in installed_toolchain(Platform.CPU)
