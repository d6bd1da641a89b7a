"""The folder and the manifest of an engine that a build made."""

from pathlib import Path

import pytest

from compiler_worker.builders.base import BuildResult
from compiler_worker.building.publish import engine_manifest, write_engine_folder
from services.contracts.errors import (
    StoreError,
)
from tests.unit.compiler_worker.children.child_requests import KEY, MASTER


class TestPublish:
    def test_an_engine_folder_has_the_published_names(self, tmp_path: Path) -> None:
        source = tmp_path / "built.bin"
        source.write_bytes(b"engine")
        folder = write_engine_folder(
            {"engine.plan": source, "cache/k": source}, tmp_path / "engine"
        )
        assert (folder / "engine.plan").read_bytes() == b"engine"
        assert (folder / "cache" / "k").read_bytes() == b"engine"

    def test_a_name_that_leaves_the_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match=r"\.\./out"):
            write_engine_folder({"../out": tmp_path / "x"}, tmp_path / "engine")

    def test_the_larger_peak_counts(self) -> None:
        built = BuildResult(
            files={}, needs_master=True, findings=("slow",), duration_s=1.0, peak_memory_bytes=10
        )
        assert engine_manifest(KEY, MASTER, built, 5).peak_build_memory_bytes == 10
        manifest = engine_manifest(KEY, MASTER, built, 50)
        assert manifest.peak_build_memory_bytes == 50
        assert manifest.findings == ("slow",)
        assert manifest.inputs == MASTER.inputs
