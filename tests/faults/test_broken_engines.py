"""Engines that are broken on purpose, each in one way, are refused with the reason.

Every one of them is a real ONNX Runtime engine on a real model whose weights or answers were
changed. The honest engine beside them passes.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler_worker.inputs.sample_sizes import edge_sizes
from compiler_worker.proof.claim import Claim, ProofVerdict
from compiler_worker.proof.judge import judge
from compiler_worker.references.models import Model
from compiler_worker.references.reference import Reference, open_eager, open_reference
from services.contracts.errors import EngineError, ProofError
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import (
    Bucket,
    DimRange,
    InputRecipe,
    InputRole,
    OutputRecipe,
    RankingTask,
    Recipe,
)
from services.engines.base import LoadSpec
from services.engines.device.device_probe import probe_device
from services.engines.device.toolchain import installed_version
from services.engines.onnxruntime_engine import OnnxruntimeEngine
from tests.conformance.tiny_model import (
    VOCABULARY,
    draw_inputs,
    master_record,
    save_master,
    tiny_model,
)
from tests.documents import small_key, small_manifest

BATCH = DimRange(min=1, opt=2, max=4)
SHORT = Bucket(dims={"batch": BATCH, "sequence": DimRange(min=1, opt=4, max=8)})
LONG = Bucket(dims={"batch": BATCH, "sequence": DimRange(min=9, opt=16, max=24)})
RECIPE = Recipe(
    inputs={
        "ids": InputRecipe(high=VOCABULARY),
        "mask": InputRecipe(role=InputRole.MASK),
    },
    outputs={"hidden": OutputRecipe(valid_where="mask")},
    ranking=RankingTask(output="pooled", num_queries=8, top_k=5),
)
MASTER = master_record()
CLAIM = Claim(
    master=MASTER,
    recipe=RECIPE,
    precision=Precision.FP32,
    buckets=(SHORT, LONG),
    samples=draw_inputs(40, 8),
)

Answer = dict[str, Array]


def loaded(model: onnx.ModelProto, folder: Path) -> OnnxruntimeEngine:
    """A real engine on a model."""
    folder.mkdir()
    key = small_key(
        master_digest=MASTER.digest,
        kind=EngineKind.ONNXRUNTIME,
        buckets=CLAIM.buckets,
        generation=probe_device().generation,
        toolchain={"onnxruntime": installed_version("onnxruntime")},
    )
    manifest = small_manifest(key, inputs=MASTER.inputs, outputs=MASTER.outputs, needs_master=True)
    spec = LoadSpec(
        manifest=manifest,
        master=MASTER,
        directory=folder,
        master_path=save_master(model, folder),
        device=probe_device(),
        num_threads=1,
    )
    return OnnxruntimeEngine.load(spec)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> OnnxruntimeEngine:
    return loaded(tiny_model(), tmp_path_factory.mktemp("honest") / "engine")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("reference")
    path = save_master(tiny_model(), folder)
    eager = open_eager(path, MASTER, "cpu")
    return open_reference(path, MASTER, eager, folder / "cache", num_threads=1)


class Altered:
    """An engine whose answers are changed on their way out."""

    def __init__(self, engine: Model, alter: Callable[[Answer, Mapping[str, Array]], None]) -> None:
        self._engine = engine
        self._alter = alter

    def run(self, inputs: Mapping[str, Array]) -> Answer:
        """The engine's answer, altered in place."""
        answer = self._engine.run(inputs)
        self._alter(answer, inputs)
        return answer


def exchanged(first: str, second: str) -> onnx.ModelProto:
    """The model with two of its weight tensors exchanged."""
    model = tiny_model()
    by_name = {tensor.name: tensor for tensor in model.graph.initializer}
    by_name[first].name, by_name[second].name = second, first
    return model


def faulty(verdict: ProofVerdict) -> set[tuple[str, str]]:
    """Outputs and buckets in which a fault was found."""
    return {(check.output, check.bucket) for check in verdict.checks if check.fault}


def test_the_honest_engine_passes(honest: OnnxruntimeEngine, reference: Reference) -> None:
    verdict = judge(honest, reference, CLAIM)
    assert verdict.reason == ""
    shapes = {(check.bucket, *check.sizes.values()) for check in verdict.checks}
    edges = {(b.label, *sizes.values()) for b in CLAIM.buckets for sizes in edge_sizes(b)}
    assert len(edges) == 2 * 9
    assert edges < shapes
    assert len(verdict.checks) == 2 * len(shapes), "two outputs"
    assert [task.value for task in verdict.tasks] == [1.0]
    assert 0 < max(check.rel_l2 for check in verdict.checks) < 1e-5
    assert "float64" in reference.name


def test_a_scaled_output_is_refused(honest: OnnxruntimeEngine, reference: Reference) -> None:
    def scale(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["pooled"] = answer["pooled"] * np.float32(1.01)

    verdict = judge(Altered(honest, scale), reference, CLAIM)
    assert "output 'pooled', bucket batch4-sequence24 at batch=4 sequence=24:" in verdict.reason
    assert "rel_l2 1.00e-02 found, 1.00e-05 allowed" in verdict.reason
    assert faulty(verdict) == {("pooled", SHORT.label), ("pooled", LONG.label)}


def test_exchanged_weights_are_refused(tmp_path: Path, reference: Reference) -> None:
    engine = loaded(exchanged("wq", "wv"), tmp_path / "engine")
    verdict = judge(engine, reference, CLAIM)
    assert "output 'hidden', bucket batch4-sequence" in verdict.reason
    assert faulty(verdict) == {
        (output, bucket.label) for output in ("hidden", "pooled") for bucket in CLAIM.buckets
    }


def test_one_nan_at_one_shape_is_refused(honest: OnnxruntimeEngine, reference: Reference) -> None:
    def poison(answer: Answer, inputs: Mapping[str, Array]) -> None:
        if inputs["ids"].shape == (4, 24):
            answer["hidden"][0, 0, 3] = np.nan

    verdict = judge(Altered(honest, poison), reference, CLAIM)
    assert verdict.reason == (
        "output 'hidden', bucket batch4-sequence24 at batch=4 sequence=24: "
        "1 NaN or Inf values found, 0 allowed"
    )


def test_a_nan_at_an_invalid_position_is_no_fault(
    honest: OnnxruntimeEngine, reference: Reference
) -> None:
    def poison(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["hidden"][inputs["mask"] == 0] = np.nan

    assert judge(Altered(honest, poison), reference, CLAIM).reason == ""


def test_one_wrong_bucket_is_refused_and_named(
    honest: OnnxruntimeEngine, reference: Reference
) -> None:
    def shift(answer: Answer, inputs: Mapping[str, Array]) -> None:
        if inputs["ids"].shape[1] > 8:
            answer["hidden"] += np.float32(0.001)

    verdict = judge(Altered(honest, shift), reference, CLAIM)
    assert "output 'hidden', bucket batch4-sequence24" in verdict.reason
    assert "batch4-sequence8" not in verdict.reason
    assert "allowed" in verdict.reason
    assert faulty(verdict) == {("hidden", LONG.label)}


def test_a_wrong_datatype_is_refused(honest: OnnxruntimeEngine, reference: Reference) -> None:
    def widen(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["pooled"] = answer["pooled"].astype(np.float64)

    verdict = judge(Altered(honest, widen), reference, CLAIM)
    assert "output 'pooled', bucket batch4" in verdict.reason
    assert "datatype FP64 found, FP32 wanted" in verdict.reason


def test_a_wrong_shape_is_refused(honest: OnnxruntimeEngine, reference: Reference) -> None:
    def flatten(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["hidden"] = answer["hidden"].reshape(len(answer["hidden"]), -1)

    verdict = judge(Altered(honest, flatten), reference, CLAIM)
    assert "output 'hidden'" in verdict.reason
    assert "shape [4, 384] found, [4, 24, 16] wanted" in verdict.reason


def test_a_missing_output_is_refused(honest: OnnxruntimeEngine, reference: Reference) -> None:
    def drop(answer: Answer, inputs: Mapping[str, Array]) -> None:
        del answer["hidden"]

    verdict = judge(Altered(honest, drop), reference, CLAIM)
    assert "output 'hidden'" in verdict.reason
    assert "missing; found ['pooled']" in verdict.reason


def test_an_engine_that_answers_differently_each_time_is_refused(
    honest: OnnxruntimeEngine, reference: Reference
) -> None:
    calls = iter(range(10**6))

    def drift(answer: Answer, inputs: Mapping[str, Array]) -> None:
        # Small enough to pass beside the reference in bf16, too large between two runs.
        answer["pooled"] *= np.float32(1 + 1e-3 * (next(calls) % 2))

    claim = Claim(**{**vars(CLAIM), "precision": Precision.BF16})
    assert judge(honest, reference, claim).reason == ""
    verdict = judge(Altered(honest, drift), reference, claim)
    assert "output 'pooled', bucket batch4" in verdict.reason
    assert "two runs on the same inputs differ: rel_l2 9.99e-04 found, 1.00e-05 allowed" in (
        verdict.reason
    )


def test_neighbours_that_changed_are_refused(
    honest: OnnxruntimeEngine, reference: Reference
) -> None:
    """Wide tolerances let the values pass: the task still sees that the ranking is lost."""

    def shuffle(answer: Answer, inputs: Mapping[str, Array]) -> None:
        if len(inputs["ids"]) == 4 and inputs["ids"].shape[1] == 8:
            answer["pooled"] = np.roll(answer["pooled"], 1, axis=0)

    claim = Claim(**{**vars(CLAIM), "buckets": (SHORT,)})
    verdict = judge(Altered(honest, shuffle), reference, claim)
    (task,) = verdict.tasks
    assert not task.is_passed
    assert task.value < 0.9
    assert f"task top5_overlap:pooled: {task.value:.4f} found, 1.0000 wanted" in verdict.reason


def test_an_engine_that_fails_is_refused_with_its_words(
    honest: OnnxruntimeEngine, reference: Reference
) -> None:
    def fail(answer: Answer, inputs: Mapping[str, Array]) -> None:
        if inputs["ids"].shape == (2, 16):
            raise EngineError("device lost")

    verdict = judge(Altered(honest, fail), reference, CLAIM)
    assert verdict.reason == (
        "the engine failed: bucket batch4-sequence24 at batch=2 sequence=16: device lost"
    )


def test_a_reference_that_its_witness_contradicts_is_refused_itself(
    honest: OnnxruntimeEngine, tmp_path: Path
) -> None:
    """As when the importer has a fault, and nobody can be asked: no engine may pass beside it."""
    (tmp_path / "other").mkdir()
    path, other = (
        save_master(tiny_model(), tmp_path),
        save_master(exchanged("wq", "wv"), tmp_path / "other"),
    )
    eager = open_eager(other, MASTER, "cpu")
    crossed = open_reference(other, MASTER, eager, tmp_path / "cache")
    witnessed = open_reference(path, MASTER, eager, tmp_path / "cache2")
    mixed = Reference(**{**vars(crossed), "witness": witnessed.witness, "tie_breaker": None})
    with pytest.raises(ProofError, match="reference check failed.* differs in output"):
        judge(honest, mixed, CLAIM)
