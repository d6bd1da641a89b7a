"""Which engine serves: the best that loads, the next one, the fallback; and live swaps."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from compiler_worker.arguments import parse_arguments
from services.contracts.errors import EngineError, InvalidRequestError
from services.contracts.manifest import ModelVersion, ProofOutcome, PublishedEngine
from services.contracts.recipe import Recipe
from services.contracts.selection import FallbackReason
from services.engines.fallback_engine import FallbackEngine, FallbackSpec
from services.engines.fallback_program import kept_program
from services.engines.onnxruntime_engine import OnnxruntimeEngine
from services.pb import fleet_v1_pb2 as fleet
from services.replica.engine_checker import EngineChecker
from services.replica.engine_host import EngineHost
from services.replica.failure_notes import FailureNotes
from services.replica.fallback import CompiledFallback
from services.replica.loaded_engine import LoadedEngine, RunningEngine
from services.replica.passing_failures import FIRST_WAIT_S
from tests.unit.services.replica.batching import Clock

from .conftest import Serving, connected, until
from .controller import TestController
from .published import (
    RECIPE,
    Shelf,
    assert_answers,
    ids_of,
    load_spec,
    onnx_model,
    request_of,
    table,
)


def no_fallback(model: ModelVersion) -> RunningEngine:
    """A host that must not need the fallback."""
    raise EngineError("no fallback in this test")


def host_of(
    shelf: Shelf,
    model: ModelVersion,
    notes: FailureNotes | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> EngineHost:
    return EngineHost(
        shelf.registry, model, shelf.device, no_fallback, EngineChecker(Path("unused")),
        num_threads=1, notes=notes, clock=clock,
    )  # fmt: skip


def typed(path: Path, data: bytes) -> dict[str, Path]:
    """The own file of an ONNX Runtime engine."""
    path.write_bytes(data)
    return {"typed.onnx": path}


def blob_of(shelf: Shelf, engine: PublishedEngine, root: Path) -> Path:
    """The file in the store behind an engine's only blob."""
    (ref,) = engine.manifest.files.values()
    return root / "store" / "blobs" / "sha256" / ref.sha256


def test_the_fastest_proven_engine_is_loaded_warm(shelf: Shelf) -> None:
    model = shelf.publish_model()
    shelf.publish_engine("slow", speedup=1.5)
    best = shelf.publish_engine("fast", speedup=3.0)
    shelf.publish_engine("unproven", speedup=9.0, outcome=ProofOutcome.NOT_RUN)
    loaded = host_of(shelf, model).load()
    assert (loaded.digest, loaded.kind) == (best.digest, "onnxruntime")
    assert loaded.fallback_reason is None
    assert loaded.buckets == best.manifest.buckets
    assert loaded.detail == ""
    # It takes microseconds, and its buckets bound what it can be asked.
    assert loaded.stall_s == 10.0
    loaded.engine.close()


def test_an_engine_that_does_not_load_is_passed_over(shelf: Shelf, tmp_path: Path) -> None:
    model = shelf.publish_model()
    shelf.publish_engine("broken", speedup=9.0, files=typed(tmp_path / "t", b"no onnx"))
    good = shelf.publish_engine("good", speedup=2.0)
    host = host_of(shelf, model)
    loaded = host.load()
    assert loaded.digest == good.digest
    # It is not tried again, and the one in use stays.
    assert host.choose(good.digest).load() is None
    loaded.engine.close()


def test_an_engine_whose_bytes_changed_is_never_loaded(shelf: Shelf, tmp_path: Path) -> None:
    model = shelf.publish_model()
    data = onnx_model(3.0).SerializeToString()
    swapped = shelf.publish_engine("swapped", speedup=9.0, files=typed(tmp_path / "t", data))
    good = shelf.publish_engine("good", speedup=2.0)
    blob_of(shelf, swapped, tmp_path).write_bytes(onnx_model(2.0).SerializeToString())
    clock = Clock()
    host = host_of(shelf, model, clock=clock)
    loaded = host.load()
    assert loaded.digest == good.digest
    assert "CorruptBlobError" in loaded.detail
    assert "tried again after 60 s" in loaded.detail
    loaded.engine.close()
    # The store was at fault, not the engine: once it is whole, the engine is taken.
    blob_of(shelf, swapped, tmp_path).write_bytes(data)
    clock.now_s += FIRST_WAIT_S
    better = host.choose(good.digest).load()
    assert better is not None
    assert better.digest == swapped.digest
    better.engine.close()


def test_an_engine_that_fails_while_it_is_warmed_is_passed_over(
    shelf: Shelf, tmp_path: Path
) -> None:
    model = shelf.publish_model()
    broken = onnx_model()
    del broken.graph.output[1]  # loads, and does not give what the manifest promises
    data = typed(tmp_path / "t", broken.SerializeToString())
    shelf.publish_engine("half", speedup=9.0, files=data)
    good = shelf.publish_engine("good", speedup=2.0)
    loaded = host_of(shelf, model).load()
    assert loaded.digest == good.digest
    loaded.engine.close()


@pytest.mark.parametrize(
    ("publish", "reason"),
    [
        (lambda shelf, path: None, FallbackReason.NO_ENGINE),
        (
            lambda shelf, path: shelf.publish_engine(outcome=ProofOutcome.FAILED),
            FallbackReason.NOT_PROVEN,
        ),
        (
            lambda shelf, path: shelf.publish_engine(speed_over_fallback=0.5),
            FallbackReason.SLOWER_THAN_FALLBACK,
        ),
        (
            lambda shelf, path: shelf.publish_engine(files=typed(path / "t", b"no onnx")),
            FallbackReason.LOAD_FAILED,
        ),
    ],
)
def test_the_fallback_comes_with_its_reason(
    shelf: Shelf, tmp_path: Path, publish: object, reason: FallbackReason
) -> None:
    model = shelf.publish_model()
    assert callable(publish)
    publish(shelf, tmp_path)
    stand_in = OnnxruntimeEngine.load(load_spec(shelf, model))
    asked: list[str] = []

    def fallback(model: ModelVersion) -> RunningEngine:
        asked.append(model.name)
        return stand_in

    checker = EngineChecker(tmp_path)
    loaded = EngineHost(shelf.registry, model, shelf.device, fallback, checker).load()
    assert (loaded.kind, loaded.digest, loaded.fallback_reason) == ("fallback", "", reason)
    assert loaded.detail.startswith(reason.value)
    assert asked == ["toy"]
    loaded.engine.close()


def test_an_engine_that_is_slower_than_no_fallback_serves(shelf: Shelf, tmp_path: Path) -> None:
    """A host without a compiler for the fallback must not leave the model unserved."""
    model = shelf.publish_model()
    slow = shelf.publish_engine(speed_over_fallback=0.5)
    asked: list[str] = []

    def no_fallback(model: ModelVersion) -> RunningEngine:
        asked.append(model.name)
        raise EngineError("no compiler here")

    checker = EngineChecker(tmp_path)
    host = EngineHost(shelf.registry, model, shelf.device, no_fallback, checker)
    loaded = host.load()
    assert (loaded.digest, loaded.fallback_reason) == (slow.digest, None)
    # It is kept: the fallback is not looked for each time that the store is asked.
    assert not host.choose(slow.digest).fetch()
    assert host.choose(slow.digest).load() is None
    assert asked == ["toy"]
    loaded.engine.close()


def test_no_engine_and_no_fallback_is_an_error(shelf: Shelf) -> None:
    model = shelf.publish_model()
    with pytest.raises(EngineError, match="no fallback in this test"):
        host_of(shelf, model).load()


async def test_the_real_fallback_serves_and_gives_way_to_an_engine(
    shelf: Shelf, controller: TestController, serving: Serving
) -> None:
    model = shelf.publish_model()
    server = await serving()
    report = await until(controller, fleet.REPLICA_STATE_READY)
    assert (report.engine_kind, report.engine_digest) == ("fallback", "")
    assert (report.fallback_reason, report.detail) == ("no_engine", "no_engine")
    async with connected(server.addresses[0], server.token) as connection:
        for ids in (ids_of(1, 1), ids_of(3, 7), ids_of(8, 16)):
            assert_answers(await connection.infer(request_of(ids)), ids)
        engine = shelf.publish_engine()
        changed = fleet.EnginesChanged(master_digest=model.master.digest)
        await controller.send(fleet.ReplicaCommand(engines_changed=changed))
        async with asyncio.timeout(60):
            report = await controller.report_where(lambda r: r.engine_digest == engine.digest)
        assert (report.fallback_reason, report.detail) == ("", "")
        assert_answers(await connection.infer(request_of(ids)), ids)


def test_without_a_recipe_the_real_fallback_is_warm_at_the_sizes_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(tmp_path, RECIPE.model_copy(update={"buckets": ()}))
    model = shelf.publish_model()
    monkeypatch.setenv("PATH", "")  # it is eager then, which takes less time here
    specs: list[FallbackSpec] = []
    plain_load = FallbackEngine.load

    def load(spec: FallbackSpec) -> FallbackEngine:
        specs.append(spec)
        return plain_load(spec)

    monkeypatch.setattr(FallbackEngine, "load", load)
    cache_dir = tmp_path / "cache"
    fallback = CompiledFallback(shelf.store_url, cache_dir, shelf.device, num_threads=1)
    checker = EngineChecker(tmp_path / "checked")
    loaded = EngineHost(shelf.registry, model, shelf.device, fallback, checker).load()
    assert loaded.buckets == specs[0].buckets == model.buckets
    # The proofs of this machine, which know engines alone, take the same one.
    kept = kept_program(cache_dir, model.master, shelf.manifest().buckets, Path.unlink)
    assert specs[0].program_path == kept
    for rows, length in ((1, 1), (3, 100), (8, 128)):
        ids = ids_of(rows, length)
        outputs = loaded.engine.run({"ids": ids, "mask": np.ones_like(ids)})
        np.testing.assert_array_equal(outputs["tokens"], table()[ids])
    with pytest.raises(InvalidRequestError, match=r"built for batch 1\.\.8, sequence 1\.\.128"):
        loaded.engine.run(dict.fromkeys(("ids", "mask"), ids_of(9, 1)))
    loaded.engine.close()


def test_an_export_ends_with_the_replica_that_asked_for_it(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel's word to a child: the compiler's own, which other tests show to be kept."""
    told = tmp_path / "told"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {told}\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(EngineError, match="ended with 1"):
        CompiledFallback(shelf.store_url, tmp_path / "cache", shelf.device)(shelf.publish_model())
    words = told.read_text().splitlines()[2:]
    assert parse_arguments(words).parent_pid == os.getpid()


def test_an_export_that_fails_or_hangs_is_an_engine_error(shelf: Shelf, tmp_path: Path) -> None:
    model = shelf.publish_model()
    store = str(tmp_path / "store")
    absent = model.model_copy(update={"version": 9})
    with pytest.raises(EngineError, match=r"model 'toy' ended with 1: .*no version 9"):
        CompiledFallback(store, tmp_path / "cache", shelf.device)(absent)
    unnamed = absent.model_copy(update={"recipe": Recipe()})
    with pytest.raises(EngineError, match=r"\(for batch 1\.\.8, .* its recipe names no buckets\)"):
        CompiledFallback(store, tmp_path / "cache", shelf.device)(unnamed)
    with pytest.raises(EngineError, match="did not end within 0 s"):
        CompiledFallback(store, tmp_path / "cache", shelf.device, timeout_s=0.001)(model)
    assert list((tmp_path / "cache" / "programs").iterdir()) == []


# ---------------------------------------------------------------- the check in a child


# ---------------------------------------------------------------- live swap


async def test_a_swap_under_load_loses_no_request(
    shelf: Shelf, controller: TestController, serving: Serving, tmp_path: Path
) -> None:
    model = shelf.publish_model()
    shelf.publish_engine("first", speedup=1.0)
    server = await serving()
    await until(controller, fleet.REPLICA_STATE_READY)
    swapped = asyncio.Event()
    num_answered = 0

    async def client(number: int) -> None:
        nonlocal num_answered
        async with connected(server.addresses[number % 2], server.token) as connection:
            num_after = 0
            while num_after < 20:
                ids = ids_of(1 + number % 4, 1 + number, first=num_answered)
                assert_answers(
                    await connection.infer(request_of(ids, f"{number}")), ids, f"{number}"
                )
                num_answered += 1
                num_after += swapped.is_set()

    clients = [asyncio.create_task(client(number)) for number in range(8)]
    digests = [server.replica.loaded.digest] if server.replica.loaded else []
    for speedup in (2.0, 3.0, 4.0):
        data = onnx_model().SerializeToString()
        engine = shelf.publish_engine(
            f"next-{speedup}", speedup=speedup, files=typed(tmp_path / f"t{speedup}", data)
        )
        changed = fleet.EnginesChanged(master_digest=model.master.digest)
        await controller.send(fleet.ReplicaCommand(engines_changed=changed))
        digest = engine.digest
        async with asyncio.timeout(60):
            await controller.report_where(lambda report, d=digest: report.engine_digest == d)
        digests.append(digest)
    swapped.set()
    await asyncio.gather(*clients)
    stats = server.replica.statistics.message().inference_stats
    assert (stats.success.count, stats.fail.count) == (num_answered, 0)
    assert len(set(digests)) == 4
    assert num_answered >= 160


async def test_an_engine_that_is_announced_while_the_first_one_loads_is_taken(
    shelf: Shelf, controller: TestController, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shelf.publish_model()
    shelf.publish_engine("first", speedup=1.0)
    better: list[PublishedEngine] = []
    plain_load = EngineHost.load

    async def announce() -> None:
        # A line that opens later would not hear it; there the controller says so by itself.
        await controller.report_where(lambda _: True)
        changed = fleet.EnginesChanged(master_digest=model.master.digest)
        await controller.send(fleet.ReplicaCommand(engines_changed=changed))

    def load_meanwhile(host: EngineHost) -> LoadedEngine:
        loaded = plain_load(host)
        better.append(shelf.publish_engine("better", speedup=2.0))
        asyncio.run_coroutine_threadsafe(announce(), loop).result(60)
        return loaded

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(EngineHost, "load", load_meanwhile)
    await serving()
    async with asyncio.timeout(60):
        await controller.report_where(lambda report: report.engine_digest == better[0].digest)


async def test_news_of_no_better_engine_changes_nothing(
    shelf: Shelf, controller: TestController, serving: Serving
) -> None:
    shelf.publish_model()
    best = shelf.publish_engine("best", speedup=5.0)
    server = await serving()
    shelf.publish_engine("worse", speedup=2.0)
    assert not await server.replica.swap_if_better()
    assert server.replica.loaded is not None
    assert server.replica.loaded.digest == best.digest
