"""Builds and proofs, counted from a store."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_plan import BuildPlan, PlannedKey
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.errors import StoreError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.local_master import LocalMaster
from services.contracts.model.manifest import EngineManifest, Proof, ProofOutcome
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.history import BuildHistory
from services.contracts.store.object_store import ObstoreArtifactStore, open_store
from services.controller.build.build_reader import ViewReader
from services.controller.build.key_status import RetryPolicy
from services.controller.interfaces import NodePool
from services.controller.metrics.build_metrics import BuildMetrics
from services.telemetry import catalog
from services.telemetry.metric import Metric
from services.telemetry.prometheus_recorder import PrometheusRecorder

MASTER = "d" * 64
PLACE = {"generation": "cuda-sm90", "kind": "tensorrt", "precision": "fp16"}
SERVED = {"model": "m", "version": "1"}
ASKED = Recipe(precisions=(Precision.FP16,))


@dataclass
class Counted:
    """A store, what writes to it, and what is counted of it."""

    registry: Registry
    metrics: BuildMetrics
    collectors: CollectorRegistry = field(repr=False)
    pools: list[NodePool]

    def value(self, metric: Metric, suffix: str = "", **labels: str) -> float | None:
        return self.collectors.get_sample_value(metric.name + suffix, labels)


def counting(store: ObstoreArtifactStore, folder: Path) -> Counted:
    collectors = CollectorRegistry()
    registry = Registry(store, folder)
    recorder = PrometheusRecorder(catalog.CONTROLLER_METRICS, collectors)
    reader, pools = ViewReader(registry, RetryPolicy(), ""), list[NodePool]()
    metrics = BuildMetrics(
        recorder,
        BuildHistory(store, max_at_start=0),
        lambda: (reader.read(pools, ()), reader.moment),
    )
    return Counted(registry, metrics, collectors, pools)


@pytest.fixture
def store() -> ObstoreArtifactStore:
    return open_store("memory:")


@pytest.fixture
def counted(store: ObstoreArtifactStore, tmp_path: Path) -> Counted:
    found = counting(store, tmp_path)
    opened = LocalMaster(digest=MASTER, files={}, inputs=(), outputs=(), opset=23, num_parameters=0)
    master = found.registry.publish_master(opened)
    found.registry.add_model_version(
        name="m", master=master, recipe=ASKED, source="s", source_fingerprint="f"
    )
    found.metrics.look()
    return found


def key(driver: str = "580.1", master: str = MASTER) -> BuildKey:
    return BuildKey(
        master_digest=master,
        kind=EngineKind.TENSORRT,
        precision=Precision.FP16,
        buckets=(),
        generation="cuda-sm90",
        driver=driver,
        toolchain={},
    )


def record(
    outcome: BuildOutcome, started_at: str, of: BuildKey | None = None, proof: Proof | None = None
) -> BuildRecord:
    return BuildRecord(
        key=of or key(),
        outcome=outcome,
        stage="build",
        stage_durations_s={"build": 2.0},
        started_at=started_at,
        proof=proof,
    )


DEVICE = DeviceFacts(generation="cuda-sm90", name="H100", memory_gib=80)


def publish(
    counted: Counted, of: BuildKey, outcome: ProofOutcome, device: DeviceFacts | None = None
) -> None:
    manifest = EngineManifest(
        key=of,
        files={},
        inputs=(),
        outputs=(),
        needs_master=True,
        build_duration_s=1,
        created_at="2026-01-02" if device else "",
    )
    proof = proof_of(outcome).model_copy(update={"device": device})
    counted.registry.publish_engine(manifest, {}, proof)


def proof_of(outcome: ProofOutcome) -> Proof:
    return Proof(outcome=outcome, duration_s=3.0, created_at="")


def test_totals_count_each_attempt_once_and_begin_anew_after_a_restart(
    counted: Counted, store: ObstoreArtifactStore, tmp_path: Path
) -> None:
    counted.registry.record_build(record(BuildOutcome.FAILED, "2026-01-01"))
    counted.metrics.look()
    counted.registry.record_build(record(BuildOutcome.PROVEN, "2026-01-02"))
    for _ in range(2):
        counted.metrics.look()
    assert counted.value(catalog.BUILDS, **PLACE, outcome="failed") == 1
    assert counted.value(catalog.BUILDS, **PLACE, outcome="proven") == 1
    assert counted.value(catalog.BUILDS, **PLACE, outcome="built") == 0
    assert counted.value(catalog.BUILD_DURATION, "_sum", **PLACE) == 4.0
    restarted = counting(store, tmp_path)
    restarted.metrics.look()
    restarted.registry.record_build(record(BuildOutcome.PROVEN, "2026-01-03"))
    restarted.metrics.look()
    assert restarted.value(catalog.BUILDS, **PLACE, outcome="proven") == 1


def test_a_start_reads_no_record_of_what_is_proven_or_not_planned(
    counted: Counted, store: ObstoreArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proven, dropped = key("581.0"), key("582.0")
    for of in (key(), proven, dropped):
        counted.registry.record_build(record(BuildOutcome.FAILED, "2026-01-01", of))
    publish(counted, proven, ProofOutcome.PASSED, DEVICE)
    read, plain = [], store.read
    monkeypatch.setattr(store, "read", lambda key: (read.append(key), plain(key))[1])
    restarted = counting(store, tmp_path)
    show_planned(restarted, key(), proven)
    restarted.metrics.look()
    assert [each for each in read if each.startswith("builds/")] == [
        f"builds/{key().digest()}/000001.json"
    ]
    assert restarted.value(catalog.BUILD_STATE, **SERVED, **PLACE, outcome="failed") == 0
    assert restarted.value(catalog.BUILD_STATE, **SERVED, **PLACE, outcome="proven") == 1


def test_the_newest_attempt_decides_whatever_key_it_had(counted: Counted) -> None:
    def state(outcome: str) -> float | None:
        return counted.value(catalog.BUILD_STATE, **SERVED, **PLACE, outcome=outcome)

    show_planned(counted, key(), key("581.0"))
    counted.registry.record_build(record(BuildOutcome.FAILED, "2026-01-01"))
    counted.metrics.look()
    assert (state("failed"), state("proven")) == (1, 0)
    # After a new driver the key is another one; the old one's failure is history.
    newer = record(BuildOutcome.PROVEN, "2026-01-02", key("581.0"))
    counted.registry.record_build(newer)
    counted.metrics.look()
    assert (state("failed"), state("proven")) == (0, 1)


def test_attempts_for_a_master_that_nobody_serves_show_no_state(counted: Counted) -> None:
    counted.registry.record_build(record(BuildOutcome.FAILED, "2026-01-01", key(master="e" * 64)))
    counted.metrics.look()
    assert counted.value(catalog.BUILDS, **PLACE, outcome="failed") == 1
    assert counted.value(catalog.BUILD_STATE, **SERVED, **PLACE, outcome="failed") is None


def test_proofs_published_and_not(counted: Counted) -> None:
    publish(counted, key(), ProofOutcome.NOT_RUN)
    counted.registry.add_proof(key().digest(), proof_of(ProofOutcome.PASSED))
    failed = proof_of(ProofOutcome.FAILED)
    counted.registry.record_build(
        record(BuildOutcome.PROOF_FAILED, "2026-01-01", key("581.0"), failed)
    )
    counted.metrics.look()
    values = {
        o.value: counted.value(catalog.PROOFS, **PLACE, outcome=o.value) for o in ProofOutcome
    }
    assert values == {"passed": 1, "failed": 1, "not_run": 1}
    # One that was not run took no time.
    assert counted.value(catalog.PROOF_DURATION, "_count", **PLACE) == 2


def test_engines_by_their_newest_proof(counted: Counted) -> None:
    def engines(outcome: str) -> float | None:
        labels = {name: PLACE[name] for name in ("generation", "kind")}
        return counted.value(catalog.ENGINES, **SERVED, **labels, outcome=outcome)

    show_planned(counted, key(), key("581.0"))
    publish(counted, key(), ProofOutcome.NOT_RUN)
    publish(counted, key("581.0"), ProofOutcome.PASSED)
    counted.metrics.look()
    assert (engines("not_run"), engines("passed"), engines("failed")) == (1, 1, 0)
    counted.registry.add_proof(key().digest(), proof_of(ProofOutcome.FAILED))
    counted.metrics.look()
    assert (engines("not_run"), engines("passed"), engines("failed")) == (0, 1, 1)


def test_a_proof_that_refuses_what_auto_tries_is_no_failure(counted: Counted) -> None:
    def shown(outcome: str) -> tuple[float | None, float | None]:
        labels = SERVED | {"version": "2"} | PLACE
        state = counted.value(catalog.BUILD_STATE, **labels, outcome=outcome)
        labels.pop("precision")
        return state, counted.value(catalog.ENGINES, **labels, outcome=outcome)

    master = counted.registry.model_version("m").master
    counted.registry.add_model_version(
        name="m", master=master, recipe=Recipe(), source="s", source_fingerprint="g"
    )
    show_planned(counted, key(), key("581.0"))
    publish(counted, key(), ProofOutcome.FAILED)
    failed = record(BuildOutcome.PROOF_FAILED, "2026-01-01", key("581.0"))
    counted.registry.record_build(failed)
    counted.metrics.look()
    assert shown("refused") == (1, 1)
    assert (shown("proof_failed")[0], shown("failed")[1]) == (0, 0)


def show_planned(counted: Counted, *keys: BuildKey, generation: str = "cuda-sm90") -> None:
    """Have the newest version's plan for a node hold these keys."""
    version = counted.registry.model_version("m")
    node_class = NodeClass(generation=generation)
    counted.registry.write_plan(
        BuildPlan(
            model="m",
            version=version.version,
            node_class=node_class,
            planned=tuple(PlannedKey(key=each) for each in keys),
            created_at="",
        )
    )
    counted.pools[:] = [NodePool(node_class=node_class, source="file", num_nodes=0)]


def test_what_no_plan_of_present_nodes_holds_any_more_concerns_nobody(counted: Counted) -> None:
    """A kind that a recipe dropped, a generation that left, a toolchain that was replaced."""

    def shown() -> tuple[float | None, float | None]:
        state = counted.value(catalog.BUILD_STATE, **SERVED, **PLACE, outcome="failed")
        labels = {name: PLACE[name] for name in ("generation", "kind")}
        return state, counted.value(catalog.ENGINES, **SERVED, **labels, outcome="failed")

    old, new = key("580.1"), key("581.0")
    counted.registry.record_build(record(BuildOutcome.FAILED, "2026-01-01", old))
    publish(counted, old, ProofOutcome.FAILED)
    show_planned(counted, old)
    counted.metrics.look()
    assert shown() == (1, 1)
    show_planned(counted, new)
    counted.metrics.look()
    assert shown() == (0, 0)
    counted.registry.record_build(record(BuildOutcome.FAILED, "2026-01-02", new))
    counted.metrics.look()
    assert shown() == (1, 0)
    show_planned(counted)
    counted.metrics.look()
    assert shown() == (0, 0)


def test_a_version_that_is_the_newest_again_shows_where_it_stands(counted: Counted) -> None:
    first = counted.registry.model_version("m")
    counted.registry.record_build(record(BuildOutcome.FAILED, "2026-01-01"))
    counted.metrics.look()
    for number, master in enumerate(("e" * 64, MASTER)):
        counted.registry.add_model_version(
            name="m",
            master=first.master.model_copy(update={"digest": master}),
            recipe=Recipe(),
            source="s",
            source_fingerprint=str(number),
        )
        show_planned(counted, key(master=master))
        counted.metrics.look()
    served = SERVED | {"version": "3"}
    assert counted.value(catalog.BUILD_STATE, **served, **PLACE, outcome="failed") == 1


async def test_a_store_that_fails_is_asked_again(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.registry.record_build(record(BuildOutcome.FAILED, "2026-01-01"))
    look, is_seen, num_looks = counted.metrics.look, asyncio.Event(), 0
    loop = asyncio.get_running_loop()

    def fails_first() -> None:
        nonlocal num_looks
        num_looks += 1
        if num_looks == 1:
            raise StoreError("the store is away")
        look()
        loop.call_soon_threadsafe(is_seen.set)

    monkeypatch.setattr(counted.metrics, "look", fails_first)
    following = asyncio.create_task(counted.metrics.follow(period_s=0.01))
    async with asyncio.timeout(30):
        await is_seen.wait()
    following.cancel()
    assert counted.value(catalog.BUILDS, **PLACE, outcome="failed") == 1
