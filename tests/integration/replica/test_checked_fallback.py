"""Fallbacks that answer wrong, by their import or on this device alone: ONNX Runtime serves."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler_worker.builders.exported_program import export_program
from services.contracts.errors import EngineError
from services.contracts.model.manifest import ModelVersion, ProofOutcome
from services.contracts.model.recipe import Tolerance
from services.contracts.selection.fallback_verdict import FallbackVerdict
from services.contracts.store.kept_answers import KeptAnswer, write_answers
from services.contracts.store.object_store import open_store
from services.engines.fallback.fallback_engine import FallbackEngine
from services.engines.fallback.fallback_program import importer_code, kept_program
from services.engines.onnxruntime_engine import OnnxruntimeEngine
from services.replica.engine.checker import EngineChecker
from services.replica.engine.fallback import CompiledFallback
from services.replica.engine.loaded_engine import (
    FallbackLoader,
    FoundBy,
    LoadedEngine,
    RunningEngine,
)
from services.replica.engine.manager import EngineManager

from .published import Shelf, ids_of, no_fallback, onnx_model, table, typed

BOUND = Tolerance(rel_l2=1e-4, max_abs=1e-4, cosine_distance=1e-5)
BY_IMPORTER = "output 'tokens', bucket b at batch=1: rel_l2 1.00e+00 found, 1.00e-05 allowed"


def judged(
    shelf: Shelf, folder: Path, *, refuted: str = "", code: str = "", scale: float = 1.0
) -> ModelVersion:
    """The version with two right answers, or others, and what was found of its import."""
    rows = scale * table()
    answers = [
        KeptAnswer(
            inputs={"ids": ids, "mask": np.ones_like(ids)},
            outputs={"tokens": rows[ids], "pooled": rows[ids].sum(axis=1)},
        )
        for ids in (ids_of(1, 3, first=5), ids_of(4, 9))
    ]
    write_answers(folder / "answers.npz", answers)
    verdict = FallbackVerdict(
        refuted=refuted,
        witness="ONNX Runtime",
        code=code or importer_code(),
        num_samples=2,
        allowed={"tokens": BOUND, "pooled": BOUND},
    )
    kept = open_store(shelf.store_url).put_blob(folder / "answers.npz")
    model = shelf.publish_model()
    return model.model_copy(update={"fallback_verdict": verdict, "fallback_answers": kept})


def loaded_by(shelf: Shelf, model: ModelVersion, fallback: FallbackLoader) -> LoadedEngine:
    """What is served for good."""
    checker = EngineChecker(Path("unused"))
    host = EngineManager(shelf.registry, model, shelf.device, fallback, checker, num_threads=1)
    loaded = host.choose(None).load()
    assert loaded is not None
    return loaded


def assert_right(loaded: LoadedEngine) -> None:
    ids = ids_of(3, 7)
    outputs = loaded.engine.run({"ids": ids, "mask": np.ones_like(ids)})
    np.testing.assert_array_equal(outputs["tokens"], table()[ids])
    loaded.engine.close()


def scaled_master(folder: Path, scale: float) -> Path:
    """Another model with the same interface."""
    onnx.save(onnx_model(scale), folder / "scaled.onnx")
    return folder / "scaled.onnx"


class ScaledFallback:
    """A fallback of another model; counts itself."""

    def __init__(self, folder: Path, scale: float) -> None:
        self._path, self.num_loaded = scaled_master(folder, scale), 0

    def __call__(self, model: ModelVersion) -> RunningEngine:
        self.num_loaded += 1
        return OnnxruntimeEngine.of_master(model.master, model.buckets, self._path, num_threads=1)


def test_an_import_that_was_refuted_is_not_even_compiled(shelf: Shelf, tmp_path: Path) -> None:
    loaded = loaded_by(shelf, judged(shelf, tmp_path, refuted=BY_IMPORTER), no_fallback)
    assert (loaded.kind, loaded.fallback_reason) == ("fallback", "no_engine")
    assert loaded.refutation is not None
    assert loaded.refutation.found_by is FoundBy.IMPORTER
    assert loaded.refutation.words.endswith(BY_IMPORTER)
    assert_right(loaded)


def test_a_model_that_torch_has_not_is_served_without_asking_torch(
    shelf: Shelf, tmp_path: Path
) -> None:
    model = judged(shelf, tmp_path)
    verdict = FallbackVerdict(
        refused="ai.onnx.ml::TreeEnsembleRegressor is not translated", code=importer_code()
    )
    # Nothing is compared then, and no answers are kept.
    found = {"fallback_verdict": verdict, "fallback_answers": None}
    loaded = loaded_by(shelf, model.model_copy(update=found), no_fallback)
    assert (loaded.kind, loaded.fallback_reason) == ("fallback", "no_engine")
    assert loaded.refutation is not None
    assert loaded.refutation.found_by is FoundBy.UNSUPPORTED
    assert "cannot compute this model: ai.onnx.ml::TreeEnsemble" in loaded.refutation.words
    assert_right(loaded)


@pytest.mark.parametrize("code", ["", "an older one"])
def test_what_another_importer_refused_is_asked_of_torch_and_served_either_way(
    shelf: Shelf, tmp_path: Path, code: str
) -> None:
    verdict = FallbackVerdict(refused="Gelu is not translated", code=code)
    model = shelf.publish_model().model_copy(update={"fallback_verdict": verdict})
    fallback = ScaledFallback(tmp_path, 1.0)
    learnt = loaded_by(shelf, model, fallback)
    assert (fallback.num_loaded, learnt.refutation) == (1, None)
    assert_right(learnt)
    loaded = loaded_by(shelf, model, no_fallback)
    assert loaded.refutation is not None
    assert loaded.refutation.found_by is FoundBy.UNSUPPORTED
    assert loaded.refutation.words.endswith("this model: no fallback in this test")
    assert_right(loaded)


@pytest.mark.parametrize(("scale", "is_refuted"), [(1.0, False), (1.001, True)])
def test_of_another_importer_the_kept_answers_say_enough(
    shelf: Shelf, tmp_path: Path, scale: float, is_refuted: bool
) -> None:
    model = judged(shelf, tmp_path, refuted=BY_IMPORTER, code="an older one")
    fallback = ScaledFallback(tmp_path, scale)
    loaded = loaded_by(shelf, model, fallback)
    assert (fallback.num_loaded, loaded.refutation is not None) == (1, is_refuted)
    if scale == 1.0:
        assert_right(loaded)


@pytest.mark.parametrize("is_doctored", [False, True])
def test_a_program_file_that_computes_something_else(
    shelf: Shelf, tmp_path: Path, is_doctored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real fallback; the file that it compiles is another model's."""
    monkeypatch.setenv("PATH", "")  # it is eager then, which takes less time here
    model, cache_dir = judged(shelf, tmp_path), tmp_path / "cache"
    wrong = scaled_master(tmp_path, 3.0 if is_doctored else 1.0)
    made: list[Path] = []

    def export(draft: Path) -> None:
        export_program(wrong, model.buckets, draft)
        made.append(draft)

    kept_program(cache_dir, model.master, model.buckets, export)
    assert made
    fallback = CompiledFallback(shelf.store_url, cache_dir, shelf.device, num_threads=1)
    loaded = loaded_by(shelf, model, fallback)
    assert isinstance(loaded.engine, FallbackEngine) is not is_doctored
    if is_doctored:
        assert loaded.refutation is not None
        assert loaded.refutation.found_by is FoundBy.DEVICE
        assert "on this device: output 'tokens' at {'ids': [" in loaded.refutation.words
        assert "rel_l2 2.00e+00 found, 1.00e-04 allowed" in loaded.refutation.words
    assert_right(loaded)


def test_a_fallback_that_fails_at_a_kept_answer_is_wrong_too(shelf: Shelf, tmp_path: Path) -> None:
    class Closed:
        """A fallback whose engine fails."""

        def __call__(self, model: ModelVersion) -> RunningEngine:
            engine = ScaledFallback(tmp_path, 1.0)(model)
            engine.close()
            return engine

    loaded = loaded_by(shelf, judged(shelf, tmp_path), Closed())
    assert loaded.refutation is not None
    assert "it fails where ONNX Runtime answers: OnnxruntimeEngine is closed" in (
        loaded.refutation.words
    )
    assert_right(loaded)


def test_a_slower_engine_is_better_than_a_fallback_that_is_wrong(
    shelf: Shelf, tmp_path: Path
) -> None:
    slower = shelf.publish_engine("slower", speed_over_fallback=0.5)
    fallback = ScaledFallback(tmp_path, 1.001)
    loaded = loaded_by(shelf, judged(shelf, tmp_path), fallback)
    assert (loaded.digest, loaded.refutation, fallback.num_loaded) == (slower.digest, None, 1)
    assert_right(loaded)


def test_what_is_in_the_place_of_a_wrong_fallback_serves_where_no_slower_engine_loads(
    shelf: Shelf, tmp_path: Path
) -> None:
    broken = typed(tmp_path / "typed.onnx", b"no onnx")
    shelf.publish_engine("slower", speed_over_fallback=0.5, files=broken)
    loaded = loaded_by(shelf, judged(shelf, tmp_path), ScaledFallback(tmp_path, 1.001))
    assert (loaded.kind, loaded.refutation is not None) == ("fallback", True)
    assert_right(loaded)


def test_a_slower_engine_that_is_refuted_gives_way_again(shelf: Shelf, tmp_path: Path) -> None:
    slower = shelf.publish_engine("slower", speed_over_fallback=0.5)
    model, fallback = judged(shelf, tmp_path), ScaledFallback(tmp_path, 1.001)
    checker = EngineChecker(Path("unused"))
    host = EngineManager(shelf.registry, model, shelf.device, fallback, checker, num_threads=1)
    first = host.choose(None).load()
    assert first is not None
    assert first.digest == slower.digest
    failed = {"outcome": ProofOutcome.FAILED, "reason": "on purpose"}
    shelf.registry.add_proof(slower.digest, slower.proof.model_copy(update=failed))
    then = host.choose(slower.digest).load()
    assert then is not None
    assert (then.digest, then.refutation is not None) == ("", True)
    first.engine.close()
    assert_right(then)


def test_a_version_of_an_older_smelt_is_served_as_it_was(shelf: Shelf, tmp_path: Path) -> None:
    loaded = loaded_by(shelf, shelf.publish_model(), ScaledFallback(tmp_path, 1.001))
    assert (loaded.kind, loaded.refutation) == ("fallback", None)
    loaded.engine.close()


def test_where_neither_can_serve_both_are_told(shelf: Shelf, tmp_path: Path) -> None:
    model = judged(shelf, tmp_path, refuted=BY_IMPORTER)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no onnx")
    other = open_store(shelf.store_url).put_blob(broken)
    master = model.master.model_copy(update={"files": {"model.onnx": other}})
    with pytest.raises(
        EngineError, match=r"imported wrong: output.*1\.00e-05 allowed; and that fails: ONNX"
    ):
        loaded_by(shelf, model.model_copy(update={"master": master}), no_fallback)


def test_a_runtime_that_is_wrong_too_takes_no_place(shelf: Shelf, tmp_path: Path) -> None:
    wrong = judged(shelf, tmp_path, scale=1.5)
    with pytest.raises(
        EngineError, match="ONNX Runtime serves in place.* wrong on this device too"
    ):
        loaded_by(shelf, wrong, ScaledFallback(tmp_path, 1.001))
