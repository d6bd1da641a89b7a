"""The tiny model on disk and plans for it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from compiler_worker.builders.base import BuildSpec
from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.recipe import Bucket, Recipe
from tests.conformance.tiny_model import master_record, save_master, tiny_model
from tests.conformance.workshop import BUCKETS

PlanMaker = Callable[..., BuildSpec]


@pytest.fixture
def master_path(tmp_path: Path) -> Path:
    return save_master(tiny_model(), tmp_path)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def make_plan(master_path: Path) -> PlanMaker:
    """Plans for the tiny model; the toolchain is not what these tests are about."""

    def make(
        kind: EngineKind,
        generation: str,
        *,
        precision: Precision = Precision.FP32,
        buckets: tuple[Bucket, ...] = BUCKETS,
        recipe: Recipe | None = None,
        path: Path = master_path,
    ) -> BuildSpec:
        master = master_record()
        key = BuildKey(
            master_digest=master.digest,
            kind=kind,
            precision=precision,
            buckets=buckets,
            pads={name: each.pad for name, each in (recipe or Recipe()).inputs.items() if each.pad},
            generation=generation,
            toolchain={},
        )
        return BuildSpec(key=key, master=master, master_path=path)

    return make
