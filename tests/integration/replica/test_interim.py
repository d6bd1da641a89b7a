"""ONNX Runtime answers until the fallback is compiled, where it is right and quick."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from services.contracts.errors import StoreError
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import BlobRef
from services.contracts.registry.registry import Registry
from services.engines.onnxruntime_engine import OnnxruntimeEngine
from services.replica.engine.checker import EngineChecker
from services.replica.engine.loaded_engine import INTERIM_STALL_S
from services.replica.engine.manager import EngineManager
from tests.unit.services.replica.toy_batcher import Clock

from .conftest import Serving
from .controller import TestController
from .published import Shelf, assert_answers, host_of, ids_of, no_fallback, request_of
from .test_checked_fallback import ScaledFallback, assert_right, judged


def test_at_once_the_master_itself_answers_where_onnx_runtime_is_right(
    shelf: Shelf, tmp_path: Path
) -> None:
    """What torch compiles takes its place; without torch it is what there is."""
    loaded = host_of(shelf, judged(shelf, tmp_path), clock=Clock()).load()
    assert isinstance(loaded.engine, OnnxruntimeEngine)
    assert (loaded.is_interim, loaded.refutation, loaded.detail) == (True, None, "no_engine")
    # It never ran at its largest sizes, and a compiler takes its cores.
    assert loaded.stall_s == INTERIM_STALL_S
    assert_right(loaded)


def test_a_runtime_that_was_found_wrong_does_not_answer_at_once(
    shelf: Shelf, tmp_path: Path
) -> None:
    """The kept answers are those of ONNX's evaluator then."""
    fallback = ScaledFallback(tmp_path, 1.5)
    loaded = host_of(
        shelf, judged(shelf, tmp_path, scale=1.5), clock=Clock(), fallback=fallback
    ).load()
    assert (fallback.num_loaded, loaded.is_interim, loaded.refutation) == (1, False, None)
    loaded.engine.close()


def test_one_that_is_slow_is_left_after_the_first_answer_that_shows_it(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, num_runs, plain_run = Clock(), [0], OnnxruntimeEngine.run
    fallback = ScaledFallback(tmp_path, 1.0)
    host = host_of(shelf, judged(shelf, tmp_path), clock=clock, fallback=fallback)

    def run(engine: OnnxruntimeEngine, inputs: Mapping[str, Array]) -> dict[str, Array]:
        num_runs[0] += not fallback.num_loaded
        clock.now_s += 6.0
        return plain_run(engine, inputs)

    monkeypatch.setattr(OnnxruntimeEngine, "run", run)
    loaded = host.load()
    assert (num_runs, fallback.num_loaded, loaded.is_interim) == ([1], 1, False)
    loaded.engine.close()


def test_it_takes_as_many_threads_as_the_process_may_use(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left alone, ONNX Runtime takes one for each core of the host, and binds them."""
    taken: list[object] = []
    plain = OnnxruntimeEngine.of_master

    def of_master(*args: object, **options: object) -> OnnxruntimeEngine:
        taken.append(options["num_threads"])
        return plain(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(OnnxruntimeEngine, "of_master", of_master)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    model, checker = judged(shelf, tmp_path), EngineChecker(tmp_path)
    EngineManager(shelf.registry, model, shelf.device, no_fallback, checker).load().engine.close()
    assert taken == [1]


def test_kept_answers_that_cannot_be_had_for_a_moment_end_no_start(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, plain = [StoreError("away")], Registry.materialise_samples

    def materialise(registry: Registry, ref: BlobRef) -> Path:
        if errors:
            raise errors.pop()
        return plain(registry, ref)

    monkeypatch.setattr(Registry, "materialise_samples", materialise)
    fallback = ScaledFallback(tmp_path, 1.0)
    loaded = host_of(shelf, judged(shelf, tmp_path), clock=Clock(), fallback=fallback).load()
    assert (fallback.num_loaded, loaded.is_interim) == (1, False)
    assert_right(loaded)


@pytest.mark.usefixtures("forked_children")
async def test_what_is_compiled_takes_its_place_without_news(
    shelf: Shelf,
    controller: TestController,
    serving: Serving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The real fallback, of a host without a compiler: it is told that torch computes as it is."""
    monkeypatch.setenv("PATH", "")
    model = judged(shelf, tmp_path)
    assert model.fallback_answers is not None
    shelf.registry.add_model_version(
        name="toy",
        master=model.master,
        recipe=model.recipe,
        source="judged",
        source_fingerprint="judged",
        fallback_verdict=model.fallback_verdict,
        fallback_answers=shelf.registry.materialise_samples(model.fallback_answers),
    )
    server = await serving(reselect_period_s=3600.0)
    async with asyncio.timeout(300):
        first = await controller.report_where(lambda report: report.engine_kind)
        assert (first.fallback_name, first.is_fallback_interim) == ("ONNX Runtime", True)
        last = await controller.report_where(lambda r: r.fallback_name == "eager torch")
    assert (last.is_fallback_interim, last.fallback_refuted) == (False, "")
    assert_answers(await server.replica.infer(request_of(ids_of(3, 7))), ids_of(3, 7))
