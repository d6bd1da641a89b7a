"""Engines that a store or this machine cannot give now: let be for a while, never banned."""

import errno
import os
from pathlib import Path

import pytest

from services.contracts.model.manifest import PublishedEngine
from services.contracts.registry.registry import Registry
from services.replica.engine.failures import FIRST_WAIT_S
from tests.integration.replica.published import Shelf, blob_of, host_of, onnx_model, typed
from tests.unit.services.replica.toy_batcher import Clock


def test_what_a_store_cannot_give_is_fetched_again_after_ever_longer_waits(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shelf.publish_model()
    data = onnx_model().SerializeToString()
    lost = shelf.publish_engine("lost", speedup=9.0, files=typed(tmp_path / "t", data))
    good = shelf.publish_engine("good", speedup=2.0)
    blob_of(shelf, lost, tmp_path).unlink()
    tried: list[str] = []
    plain = Registry.materialise_engine

    def materialise(registry: Registry, engine: PublishedEngine) -> Path:
        tried.append(engine.digest)
        return plain(registry, engine)

    monkeypatch.setattr(Registry, "materialise_engine", materialise)
    clock = Clock()
    host = host_of(shelf, model, clock=clock)
    # An hour of looks, one each minute.
    for _ in range(60):
        assert not host.choose(good.digest).fetch()
        clock.now_s += 60.0
    assert tried == [lost.digest] * 6


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_full_disk_or_table_of_files_bans_no_engine(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    model = shelf.publish_model()
    best = shelf.publish_engine("best", speedup=9.0)
    good = shelf.publish_engine("good", speedup=2.0)
    clock = Clock()
    host = host_of(shelf, model, clock=clock)
    plain = Registry.materialise_engine

    def materialise(registry: Registry, engine: PublishedEngine) -> Path:
        if engine.digest == best.digest:
            raise OSError(number, os.strerror(number))
        return plain(registry, engine)

    with monkeypatch.context() as patch:
        patch.setattr(Registry, "materialise_engine", materialise)
        loaded = host.load()
    assert loaded.digest == good.digest
    assert f"OSError: [Errno {number}]" in loaded.detail
    assert "tried again after" in loaded.detail
    loaded.engine.close()
    clock.now_s += FIRST_WAIT_S
    assert host.choose(good.digest).fetch()
    better = host.choose(good.digest).load()
    assert better is not None
    assert better.digest == best.digest
    better.engine.close()
