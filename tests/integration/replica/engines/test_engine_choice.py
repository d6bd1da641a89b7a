"""One look at the store for one swap, and what it leaves in use when nothing can be had."""

import asyncio
import errno
import hashlib
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.registry.registry import Registry
from services.engines.onnxruntime_engine import OnnxruntimeEngine
from services.replica.engine.checker import EngineChecker
from services.replica.engine.loaded_engine import RunningEngine
from services.replica.engine.manager import EngineManager
from services.replica.replica import Replica
from services.telemetry.recorder import NullRecorder
from tests.integration.replica.published import Shelf, load_spec, onnx_model, typed
from tests.integration.replica.test_standby import (
    BAD_IDS,
    MAX_FAILURES_IN_A_ROW,
    assert_served,
    break_engine,
    digest_in_use,
)


def host_with_fallback(shelf: Shelf, model: ModelVersion, folder: Path) -> EngineManager:
    """A host whose fallback is the master in ONNX Runtime."""

    def fallback(model: ModelVersion) -> RunningEngine:
        return OnnxruntimeEngine.load(load_spec(shelf, model))

    checker = EngineChecker(folder / "checked")
    return EngineManager(shelf.registry, model, shelf.device, fallback, checker, num_threads=1)


@asynccontextmanager
async def serving(shelf: Shelf, folder: Path) -> AsyncIterator[Replica]:
    """A replica that keeps the engine before."""
    model = shelf.publish_model()
    host = host_with_fallback(shelf, model, folder)
    replica = Replica(model, shelf.device, host, NullRecorder(), standby_s=300.0)
    await replica.load()
    try:
        yield replica
    finally:
        await replica.close()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the store is asked for what, and which files on disk are hashed."""
    counts: Counter[str] = Counter()

    def count(name: str) -> None:
        plain: Callable[..., object] = getattr(Registry, name)

        def asked(*args: object) -> object:
            counts[name] += 1
            return plain(*args)

        monkeypatch.setattr(Registry, name, asked)

    for name in ("engines", "untrusted", "joint_runs"):
        count(name)
    plain_file_digest = hashlib.file_digest

    def file_digest(file: BinaryIO, name: str) -> object:
        counts[Path(file.name).name] += 1
        return plain_file_digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", file_digest)
    return counts


def put_out_of_reach(monkeypatch: pytest.MonkeyPatch, *engines: PublishedEngine) -> None:
    """Have this process too many files open whenever one of these is fetched."""
    digests, plain = {engine.digest for engine in engines}, Registry.materialise_engine

    def materialise(registry: Registry, engine: PublishedEngine) -> Path:
        if engine.digest in digests:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return plain(registry, engine)

    monkeypatch.setattr(Registry, "materialise_engine", materialise)


def withdraw(monkeypatch: pytest.MonkeyPatch, gone: PublishedEngine) -> None:
    """Take an engine out of the store."""
    plain = Registry.engines

    def engines(registry: Registry, master_digest: str | None = None) -> list[PublishedEngine]:
        return [e for e in plain(registry, master_digest) if e.digest != gone.digest]

    monkeypatch.setattr(Registry, "engines", engines)


def make_fastest(shelf: Shelf, engine: PublishedEngine) -> None:
    """Add a proof by which an engine is the best one."""
    (timing,) = engine.proof.timings
    faster = timing.model_copy(update={"eager_p50_s": 99.0})
    shelf.registry.add_proof(
        engine.digest, engine.proof.model_copy(update={"timings": (faster,), "created_at": "later"})
    )


# ---------------------------------------------------------------- one look


async def test_a_swap_asks_the_store_and_hashes_the_files_once(
    shelf: Shelf, tmp_path: Path, counted: Counter[str]
) -> None:
    shelf.publish_engine("first", speedup=2.0)
    async with serving(shelf, tmp_path) as replica:
        data = onnx_model().SerializeToString()
        files = typed(tmp_path / "t", data)
        better = shelf.publish_engine("better", speedup=9.0, files=files)
        shelf.registry.materialise_engine(better)
        counted.clear()
        assert await replica.reselect_engine()
        assert digest_in_use(replica) == better.digest
    assert counted == Counter(("engines", "untrusted", "joint_runs", "typed.onnx", "model.onnx"))


def test_what_fails_to_load_is_passed_over_in_the_same_look(
    shelf: Shelf, tmp_path: Path, counted: Counter[str]
) -> None:
    model = shelf.publish_model()
    slow = shelf.publish_engine("slow", speedup=2.0)
    good = shelf.publish_engine("good", speedup=4.0)
    broken = shelf.publish_engine("broken", speedup=9.0, files=typed(tmp_path / "t", b"no onnx"))
    choice = host_with_fallback(shelf, model, tmp_path).choose(slow.digest)
    assert choice.fetch()
    loaded = choice.load()
    assert loaded is not None
    assert loaded.digest == good.digest
    assert loaded.detail.startswith(f"{broken.digest[:12]}: EngineError: ONNX Runtime failed")
    assert [counted[name] for name in ("engines", "untrusted", "joint_runs")] == [1, 1, 1]
    loaded.engine.close()


def test_when_all_that_is_better_fails_to_load_the_engine_in_use_stays(
    shelf: Shelf, tmp_path: Path
) -> None:
    model = shelf.publish_model()
    good = shelf.publish_engine("good", speedup=2.0)
    shelf.publish_engine("broken", speedup=9.0, files=typed(tmp_path / "t", b"no onnx"))
    choice = host_with_fallback(shelf, model, tmp_path).choose(good.digest)
    assert choice.fetch()
    assert choice.load() is None
    assert not choice.fetch()


# ---------------------------------------------------------------- what passes


def test_an_engine_that_was_once_out_of_reach_is_not_left_when_it_serves(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shelf.publish_model()
    old = shelf.publish_engine("old", speedup=2.0)
    new = shelf.publish_engine("new", speedup=9.0)
    host = host_with_fallback(shelf, model, tmp_path)
    with monkeypatch.context() as patch:
        withdraw(patch, new)
        put_out_of_reach(patch, old)
        # The one in use is gone from the store: it may serve no longer, and no other can be had.
        choice = host.choose(new.digest)
        assert choice.fetch()
        fallback = choice.load()
    assert fallback is not None
    assert (fallback.kind, fallback.fallback_reason) == ("fallback", "load_failed")
    fallback.engine.close()
    host.mark_failed(new.digest, "failed in service: it hangs")
    # From the standby, that is: it is warm, and nothing was fetched for it.
    assert not host.choose(old.digest).fetch()
    assert host.choose(old.digest).load() is None


def test_where_nothing_better_can_be_had_for_now_the_engine_in_use_stays(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shelf.publish_model()
    slow = shelf.publish_engine("slow", speedup=2.0)
    good = shelf.publish_engine("good", speedup=4.0)
    best = shelf.publish_engine("best", speedup=9.0)
    host = host_with_fallback(shelf, model, tmp_path)
    put_out_of_reach(monkeypatch, slow, good, best)
    for current in (good, slow, best):
        assert not host.choose(current.digest).fetch(), current.manifest.key.builder_options
        assert host.choose(current.digest).load() is None
    assert not host.choose("").fetch()


async def swap_to_another(shelf: Shelf, replica: Replica, old: PublishedEngine) -> None:
    """Let a new engine serve, and the one before be the best of all from then on."""
    shelf.publish_engine("new", speedup=9.0)
    assert await replica.reselect_engine()
    make_fastest(shelf, old)


async def test_an_engine_that_serves_again_is_not_left_for_the_fallback(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = shelf.publish_engine("old", speedup=2.0)
    async with serving(shelf, tmp_path) as replica:
        first = replica.loaded
        await swap_to_another(shelf, replica, old)
        put_out_of_reach(monkeypatch, old)
        assert not await replica.reselect_engine()
        await fail_in_service(replica, monkeypatch)
        assert first is not None
        assert replica.loaded is not None
        assert replica.loaded.engine is first.engine
        assert digest_in_use(replica) == old.digest
        assert not await replica.reselect_engine()
        assert digest_in_use(replica) == old.digest


async def test_what_returns_while_it_is_fetched_is_not_loaded_once_more(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = shelf.publish_engine("old", speedup=2.0)
    async with serving(shelf, tmp_path) as replica:
        await swap_to_another(shelf, replica, old)
        is_fetching, may_go = threading.Event(), threading.Event()
        plain = Registry.materialise_engine

        def materialise(registry: Registry, engine: PublishedEngine) -> Path:
            is_fetching.set()
            assert may_go.wait(30)
            return plain(registry, engine)

        monkeypatch.setattr(Registry, "materialise_engine", materialise)
        swapping = asyncio.create_task(replica.reselect_engine())
        assert await asyncio.to_thread(is_fetching.wait, 30)
        await fail_in_service(replica, monkeypatch)
        returned = replica.loaded
        may_go.set()
        assert not await swapping
        assert replica.loaded is returned
        assert digest_in_use(replica) == old.digest


async def fail_in_service(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the engine in use until the one before it serves again."""
    with monkeypatch.context() as patch:
        break_engine(replica, patch)
        for _ in range(MAX_FAILURES_IN_A_ROW):
            await assert_served(replica, BAD_IDS)
        await replica.check_health()
