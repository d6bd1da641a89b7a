"""Engines serve only the recipe that they were built and proven for."""

from collections.abc import Callable

import pytest

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.manifest import (
    BlobRef,
    MasterRecord,
    ModelVersion,
    Proof,
    PublishedEngine,
)
from services.contracts.model.precision_choice import Accuracy
from services.contracts.model.recipe import (
    Bucket,
    DimRange,
    InputRecipe,
    RankingTask,
    Recipe,
    Tolerance,
)
from services.contracts.selection.selection import FallbackReason, select
from services.contracts.terms import proof_terms

MakeEngine = Callable[..., PublishedEngine]
MakeDevice = Callable[..., DeviceFacts]
MakeProof = Callable[..., Proof]

ROWS = TensorSpec(name="x", datatype="FP32", shape=("batch", 3))
BUCKET = Bucket(dims={"batch": DimRange(min=1, opt=4, max=8)})
WIDER = Bucket(dims={"batch": DimRange(min=1, opt=4, max=32)})
STRICT = Tolerance(rel_l2=1e-9, max_abs=1e-9, cosine_distance=1e-9)
SAMPLES = BlobRef(sha256="5" * 64, num_bytes=1)
FP16 = {"precisions": (Precision.FP16,)}

# what the engine was built for, what the version asks for, words of the refusal or ""
TERMS = [
    (Recipe(**FP16), Recipe(**FP16), None, ""),
    (Recipe(**FP16, buckets=(BUCKET,)), Recipe(**FP16, buckets=(BUCKET,)), None, ""),
    (Recipe(**FP16), Recipe(**FP16, num_replicas=3), None, ""),
    (
        Recipe(**FP16),
        Recipe(**FP16, kinds=(EngineKind.INDUCTOR, EngineKind.OPENVINO)),
        None,
        "kind tensorrt, the recipe asks for inductor, openvino",
    ),
    (Recipe(**FP16), Recipe(**FP16, kinds=(EngineKind.TENSORRT,)), None, ""),
    (Recipe(**FP16), Recipe(**FP16, tolerances={Precision.BF16: STRICT}), None, ""),
    (Recipe(**FP16), Recipe(**FP16, tolerances={Precision.FP16: STRICT}), None, "another recipe"),
    (Recipe(**FP16), Recipe(**FP16, ranking=RankingTask(output="x")), None, "another recipe"),
    (Recipe(**FP16), Recipe(**FP16, inputs={"x": InputRecipe(high=9)}), None, "another recipe"),
    (Recipe(**FP16), Recipe(**FP16), SAMPLES, "another recipe"),
    (Recipe(**FP16), Recipe(), None, ""),
    (
        Recipe(**FP16),
        Recipe(accuracy=Accuracy.EXACT),
        None,
        "precision fp16, the recipe asks for fp32",
    ),
    (
        Recipe(**FP16, buckets=(WIDER,)),
        Recipe(**FP16),
        None,
        "batch32, the recipe asks for batch8 by default",
    ),
    (Recipe(**FP16), Recipe(**FP16, buckets=(WIDER,)), None, "batch8, the recipe asks for batch32"),
]


@pytest.mark.parametrize(("built_for", "asked", "samples", "told"), TERMS)
def test_an_engine_serves_only_on_the_terms_it_was_proven_on(
    make_engine: MakeEngine,
    make_device: MakeDevice,
    built_for: Recipe,
    asked: Recipe,
    samples: BlobRef | None,
    told: str,
) -> None:
    terms = proof_terms(built_for, Precision.FP16, None)
    engine = make_engine(proof_terms=terms, buckets=built_for.buckets or (BUCKET,))
    selection = select([engine], make_device(), version=model_version(asked, samples))
    if not told:
        assert selection.engine == engine
        return
    assert selection.fallback_reason is FallbackReason.OTHER_RECIPE
    assert told in selection.rejections[0].detail


@pytest.mark.parametrize(
    ("precision", "calibration", "is_taken"),
    [
        (Precision.INT8, SAMPLES, True),
        (Precision.INT8, BlobRef(sha256="6" * 64, num_bytes=1), False),
        (Precision.INT8, None, False),
        (Precision.INT8_WEIGHT_ONLY, SAMPLES, True),
        (Precision.INT8_WEIGHT_ONLY, None, True),
    ],
)
def test_an_engine_serves_only_with_scales_from_the_versions_own_samples(
    make_engine: MakeEngine,
    make_device: MakeDevice,
    precision: Precision,
    calibration: BlobRef | None,
    is_taken: bool,
) -> None:
    recipe = Recipe(precisions=(precision,))
    engine = make_engine(
        precision=precision,
        proof_terms=proof_terms(recipe, precision, None),
        calibration_digest=SAMPLES.sha256 if precision.is_calibrated else "",
    )
    asking = model_version(recipe, None).model_copy(update={"calibration": calibration})
    selection = select([engine], make_device(), version=asking)
    assert (selection.engine == engine) is is_taken
    if not is_taken:
        assert selection.fallback_reason is FallbackReason.OTHER_RECIPE
        assert "calibrated with other samples" in selection.rejections[0].detail


def model_version(recipe: Recipe, samples: BlobRef | None) -> ModelVersion:
    """A version of the fixtures' master."""
    master = MasterRecord(
        digest="a" * 64, files={}, inputs=(ROWS,), outputs=(), opset=20, num_parameters=1
    )
    return ModelVersion(
        name="m",
        version=2,
        master=master,
        recipe=recipe,
        source="m.onnx",
        source_fingerprint="f",
        samples=samples,
        created_at="2026-01-01T00:00:00+00:00",
    )
