"""Which engine serves: the best that loads, the next one, the fallback."""

from pathlib import Path

import pytest

from services.contracts.errors import EngineError
from services.contracts.model.manifest import ModelVersion, ProofOutcome
from services.contracts.selection.selection import FallbackReason
from services.engines.onnxruntime_engine import OnnxruntimeEngine
from services.replica.engine.checker import EngineChecker
from services.replica.engine.failures import FIRST_WAIT_S
from services.replica.engine.loaded_engine import RunningEngine
from services.replica.engine.manager import EngineManager
from tests.integration.replica.published import (
    Shelf,
    blob_of,
    host_of,
    load_spec,
    onnx_model,
    typed,
)
from tests.unit.services.replica.toy_batcher import Clock


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
    loaded = EngineManager(shelf.registry, model, shelf.device, fallback, checker).load()
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
    host = EngineManager(shelf.registry, model, shelf.device, no_fallback, checker)
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
