"""What a plan takes an engine to compute for a batch, by its kind and generation."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.planning.curves import MeasuredSide, measured_curves
from services.cli.planning.device_simulation import Part, simulated
from services.cli.planning.plan import sizing_document
from services.cli.planning.plan_profile import DeviceOffer, ModelDemand, PlanProfile
from services.cli.planning.queue_simulation import ReplicaQueue
from services.cli.planning.replica_memory import ReplicaMemory, replica_memory
from services.cli.sizes.measured_cost import measured_cost
from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ModelVersion, ProofOutcome, Timing
from services.contracts.model.recipe import Bucket, DimRange
from services.contracts.ratio import Ratio
from services.contracts.registry.registry import Registry
from services.contracts.selection.gpu_share import gpu_share
from services.contracts.store.object_store import open_store
from services.contracts.terms import proof_terms
from tests.documents import small_key, small_manifest, small_proof
from tests.unit.services.cli.planning.planned_model import planned_model

LENGTH = DimRange(min=1, opt=8, max=8)
SECONDS = {1: 0.001, 16: 0.010}
BUCKETS = tuple(
    Bucket(dims={"batch": DimRange(min=1, opt=rows, max=rows), "length": LENGTH})
    for rows in SECONDS
)


def _published(
    folder: Path,
    model: ModelVersion,
    kind: EngineKind,
    generation: str,
    timed: Sequence[tuple[dict[str, int], float]],
    ratio: Ratio | None = None,
    proven_on: str = "",
) -> Registry:
    """A store with an engine that was proven and took so many seconds at these sizes."""
    timings = tuple(
        Timing(
            bucket="b",
            sizes=sizes,
            p50_s=seconds,
            p95_s=seconds,
            throughput=1,
            eager_p50_s=1,
            ratio=ratio,
        )
        for sizes, seconds in timed
    )
    device = DeviceFacts(generation=proven_on or generation, name="device", memory_gib=4)
    proof = small_proof(ProofOutcome.PASSED).model_copy(
        update={"timings": timings, "device": device}
    )
    key = small_key(
        master_digest=model.master.digest,
        kind=kind,
        generation=generation,
        buckets=model.buckets,
        proof_terms=proof_terms(model.recipe, Precision.FP32, model.samples),
    )
    registry = Registry(open_store(str(folder / "store")), folder / "cache")
    registry.publish_engine(small_manifest(key), {}, proof)
    return registry


@pytest.mark.parametrize(
    ("kind", "generation", "two_rows_s"),
    [
        (EngineKind.INDUCTOR, "cuda-sm90", 0.010),
        (EngineKind.TENSORRT, "cuda-sm90", 0.0016),
        (EngineKind.INDUCTOR, "cpu-x86_64-v3", 0.0016),
    ],
)
def test_only_engines_of_one_shape_a_bucket_take_as_long_as_the_largest_batch(
    kind: EngineKind, generation: str, two_rows_s: float, tmp_path: Path
) -> None:
    model = planned_model(*BUCKETS)
    timed = [({"batch": rows, "length": 8}, seconds) for rows, seconds in SECONDS.items()]
    registry = _published(tmp_path, model, kind, generation, timed)
    engine = measured_curves(registry, model)[generation][MeasuredSide.ENGINE]

    def took(rows: int) -> float:
        demand = ModelDemand(requests_per_s=1, p99_ms=1000, rows=rows)
        return simulated([Part(ReplicaQueue(model, demand, engine), 0.01)])[0].p50_s

    assert took(1) == pytest.approx(0.001)
    assert took(2) == pytest.approx(two_rows_s)
    assert took(16) == pytest.approx(0.010)


@pytest.mark.parametrize(
    ("kind", "elements", "seconds"),
    [
        (EngineKind.INDUCTOR, (32, 128), (0.003, 0.010)),
        (EngineKind.TENSORRT, (8, 32, 128), (0.003, 0.0065, 0.010)),
    ],
)
def test_a_usual_batch_that_is_padded_to_its_bucket_is_no_measurement_of_a_smaller_run(
    kind: EngineKind, elements: tuple[int, ...], seconds: tuple[float, ...], tmp_path: Path
) -> None:
    """Each bucket is timed at its usual and at its largest sizes."""
    rows = (DimRange(min=1, opt=1, max=4), DimRange(min=1, opt=4, max=16))
    model = planned_model(*(Bucket(dims={"batch": each, "length": LENGTH}) for each in rows))
    timed = [(1, 0.003), (4, 0.003), (16, 0.010)] + [(4, 0.010)] * (kind is EngineKind.TENSORRT)
    sizes = [({"batch": number, "length": 8}, took_s) for number, took_s in timed]
    registry = _published(tmp_path, model, kind, "cuda-sm90", sizes)
    curve = measured_curves(registry, model)["cuda-sm90"][MeasuredSide.ENGINE]
    assert curve.elements == elements
    assert curve.seconds == pytest.approx(seconds)


def test_curves_know_that_their_machine_was_busy(tmp_path: Path) -> None:
    wild = Ratio(low=0.5, median=2.0, high=4.0, num_pairs=20)
    timed = [({"batch": 1, "length": 8}, 0.001)]
    for name, ratio in (
        ("wild", wild),
        ("sure", wild.model_copy(update={"low": 1.9, "high": 2.1})),
    ):
        model = planned_model(*BUCKETS)
        kind, generation = EngineKind.INDUCTOR, "cuda-sm90"
        registry = _published(tmp_path / name, model, kind, generation, timed, ratio)
        sides = measured_curves(registry, model)[generation]
        assert {each.is_wild for each in sides.values()} == {name == "wild"}
        cost = measured_cost(registry, model, "length")
        assert cost
        assert cost.name.endswith(" (timed while its machine was busy)") is (name == "wild")


def test_an_engine_of_a_lower_class_is_measured_where_it_was_proven(tmp_path: Path) -> None:
    model = planned_model(*BUCKETS)
    timed = [({"batch": 1, "length": 8}, 0.001)]
    built, proven = "cpu-x86_64-v3", "cpu-x86_64-avx512"
    registry = _published(tmp_path, model, EngineKind.ONNXRUNTIME, built, timed, proven_on=proven)
    (curves,) = measured_curves(registry, model).items()
    assert curves[0] == proven
    assert curves[1][MeasuredSide.ENGINE].seconds == (0.001,)


def test_a_replica_needs_what_its_proofs_measured_of_a_gpu(tmp_path: Path) -> None:
    model = planned_model(*BUCKETS)
    timed = [({"batch": 1, "length": 8}, 0.001)]
    registry = _published(tmp_path, model, EngineKind.INDUCTOR, "cuda-sm90", timed)
    offers = {g: DeviceOffer(price_per_h=1) for g in ("cuda-sm90", "cpu-x86_64-v3")}
    (found,) = replica_memory(registry, model, offers).items()
    proofs = [each.proof for each in registry.engines(model.master.digest)]
    share = gpu_share(model, proofs, 4)
    assert found == ("cuda-sm90", ReplicaMemory(share=share.asked, needed_gib=1.02, memory_gib=4))
    # A context and an estimate of the fallback are more.
    offers["cuda-sm90"] = DeviceOffer(price_per_h=1, memory_gib=1)
    small = replica_memory(registry, model, offers)["cuda-sm90"]
    assert not small.fits
    curves = {("m", g): sides for g, sides in measured_curves(registry, model).items()}
    demand = ModelDemand(requests_per_s=1, p99_ms=1000)
    profile = PlanProfile(models={"m": demand}, devices=offers)
    with pytest.raises(InvalidRequestError, match="m does not fit on cuda-sm90: a replica needs"):
        sizing_document(profile, {"m": model}, curves, {("m", "cuda-sm90"): small})


def test_a_precision_of_which_no_engine_serves_is_refused(tmp_path: Path) -> None:
    model = planned_model(*BUCKETS)
    store = tmp_path / "store"
    Registry(open_store(str(store)), tmp_path / "cache").add_model_version(
        name="m", master=model.master, recipe=model.recipe, source="s", source_fingerprint="0"
    )
    profile = tmp_path / "profile.yaml"
    profile.write_text(
        "models: {m: {requests_per_s: 1, p99_ms: 60}}\ndevices: {cuda-sm90: {price_per_h: 1}}\n"
    )
    command = ["plan", str(profile), "--store", str(store), "--what-if", "precision=int8"]
    refused = CliRunner().invoke(app, command)
    assert "precision=int8: no int8 engine of m is proven" in str(refused.exception)
