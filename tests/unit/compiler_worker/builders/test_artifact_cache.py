"""A graph that was compiled on one machine is taken over on another one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from compiler_worker.builders.base import BuildSpec
from compiler_worker.builders.failures import recorded_warnings
from compiler_worker.builders.inductor_artifacts import build_artifacts, load_artifacts
from services.contracts.hardware.kinds import EngineKind
from tests.conformance.tiny_model import save_master, tiny_model
from tests.conformance.workshop import BUCKETS
from tests.unit.compiler_worker.builders.conftest import PlanMaker


def sibling(folder: Path) -> Path:
    """The tiny model with other weights; its scalars, which are a part of the code, stay."""
    model = onnx.ModelProto.FromString(tiny_model().SerializeToString())
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim > 1:
            tensor.CopyFrom(numpy_helper.from_array((array * 1.25).copy(), tensor.name))
    folder.mkdir()
    return save_master(model, folder)


def built_on_a_new_machine(plan: BuildSpec, workspace: Path) -> tuple[list[str], dict[str, int]]:
    """Build with empty caches of torch; what was said, and what torch counted."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    workspace.mkdir()
    counters.clear()
    said: list[str] = []
    with fresh_cache(), recorded_warnings():
        build_artifacts(plan, {}, workspace, said.append, device="cpu")
    return said, dict(counters["aot_autograd"])


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.mark.slow
def test_a_second_machine_and_a_sibling_compile_nothing(
    make_plan: PlanMaker, tmp_path: Path, cache: Path
) -> None:
    plan = make_plan(EngineKind.INDUCTOR, "cuda-sm90", buckets=BUCKETS[:1])
    plan = replace(plan, compile_cache=cache)
    _, first = built_on_a_new_machine(plan, tmp_path / "a")
    assert first["autograd_cache_miss"] == 1
    (kept,) = cache.iterdir()
    assert kept.read_bytes() == (tmp_path / "a" / "bucket0.bin").read_bytes()

    for name, other in (
        ("b", plan),
        ("c", replace(plan, master_path=sibling(tmp_path / "sibling"))),
    ):
        said, counted = built_on_a_new_machine(other, tmp_path / name)
        assert "1 graphs are known from earlier builds" in said
        assert counted.get("autograd_cache_miss", 0) == 0
        assert counted["autograd_cache_hit"] == 1
        assert list(cache.iterdir()) == [kept]


@pytest.mark.parametrize("damage", [b"", b"no artifact", bytes(200)])
def test_what_cannot_be_read_is_ignored(
    cache: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (cache / "x.bin").write_bytes(damage)
    assert load_artifacts(cache) == 0
    assert "x.bin is not used" in caplog.text


def test_without_a_folder_nothing_is_known() -> None:
    assert load_artifacts(None) == 0
