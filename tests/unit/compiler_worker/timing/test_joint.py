"""Who takes part in a joint run: what is proven and new, the best so far, within bounds."""

from dataclasses import replace
from pathlib import Path

import pytest

from compiler_worker.settings import CompilerSettings
from compiler_worker.timing.entrants import best_beside, entrants_of
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import Precision
from services.contracts.model.manifest import (
    MasterRecord,
    ModelVersion,
    Proof,
    ProofOutcome,
    SideTiming,
    Timing,
)
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from services.contracts.ratio import Ratio
from services.contracts.registry.registry import Registry
from services.contracts.selection.joint_run import JointRun, JointTiming
from services.contracts.store.object_store import open_store
from services.contracts.terms import proof_terms
from tests.documents import AT, small_key, small_manifest

DEVICE = DeviceFacts(generation="cpu-x86_64-v3", name="cpu", memory_gib=1)
MASTER = MasterRecord(digest="d" * 64, files={}, inputs=(), outputs=(), opset=20, num_parameters=1)
RECIPE = Recipe(buckets=(Bucket(dims={}),))
VERSION = ModelVersion(
    name="m",
    version=1,
    master=MASTER,
    recipe=RECIPE,
    source="m.onnx",
    source_fingerprint="f",
    created_at=AT,
)


def key_of(name: str, buckets: tuple[Bucket, ...] = RECIPE.buckets) -> BuildKey:
    terms = proof_terms(RECIPE, Precision.FP32, None)
    return small_key(buckets=buckets, builder_options={"name": name}, proof_terms=terms)


class Shop:
    """A worker on an empty store, with what a test publishes there."""

    def __init__(self, folder: Path) -> None:
        self.worker = WorkerContext(
            registry=Registry(open_store("memory:"), folder),
            settings=CompilerSettings(cache_dir=folder, benchmark_together=True),
            devices={},
        )

    def publish(
        self,
        name: str,
        p50_s: float = 1.0,
        *,
        fallback_s: float = 100.0,
        wide: float = 1.0,
        outcome: ProofOutcome = ProofOutcome.PASSED,
    ) -> str:
        """An engine that took so long in its proof; its digest."""
        key = key_of(name)
        timing = Timing(
            bucket="b",
            sizes={},
            eager_p50_s=100.0,
            fallback=side(fallback_s),
            p50_s=p50_s,
            p95_s=p50_s,
            throughput=1.0,
            ratio=ratio(fallback_s / p50_s, wide),
        )
        proof = Proof(
            outcome=outcome,
            device=DEVICE,
            timings=(timing,),
            created_at=AT,
        )
        self.worker.registry.publish_engine(small_manifest(key), {}, proof)
        return key.digest()

    def time(
        self, engines_s: dict[str, float], incumbent: str = "", fallback_s: float = 0.0
    ) -> None:
        """A joint run that was; with the fallback it measured all engines well."""
        baseline_s = fallback_s or 9.0
        shape = JointTiming(
            bucket="b",
            sizes={},
            eager=side(9.0),
            fallback=side(fallback_s) if fallback_s else None,
            engines={
                digest: side(p50_s).model_copy(update={"ratio": ratio(baseline_s / p50_s, 1.0)})
                for digest, p50_s in engines_s.items()
            },
        )
        self.worker.registry.add_joint_run(
            JointRun(
                master_digest=MASTER.digest,
                device=DEVICE,
                shapes=(shape,),
                created_at=AT,
                incumbent=incumbent,
            )
        )

    def entrants(self, *done: str) -> list[str]:
        return [e.digest for e in entrants_of(VERSION, DEVICE, self.worker, done)]

    def beside(self, name: str, buckets: tuple[Bucket, ...] = RECIPE.buckets) -> str:
        """What an engine would be timed beside in its proof, "" for none."""
        manifest = small_manifest(key_of(name, buckets))
        found = best_beside(manifest, VERSION, DEVICE, self.worker)
        return found.digest if found else ""


def ratio(median: float, wide: float) -> Ratio:
    return Ratio(median=median, low=median / wide, high=median * wide, num_pairs=20)


def side(p50_s: float) -> SideTiming:
    return SideTiming(p50_s=p50_s, p95_s=p50_s, throughput=1 / p50_s, peak_memory_bytes=1)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_one_engine_alone_was_timed_in_its_proof(shop: Shop) -> None:
    shop.publish("a")
    assert shop.entrants() == []


def test_what_no_run_has_is_timed_beside_the_fastest_but_what_could_not_serve(shop: Shop) -> None:
    """One after another, the fastest first."""
    slow, fast = shop.publish("a", 2.0), shop.publish("b", 1.0)
    slower_than_fallback = shop.publish("c", 3.0, fallback_s=1.0)
    shop.publish("failed", outcome=ProofOutcome.FAILED)
    assert shop.entrants() == [fast, slow]
    shop.time({fast: 1.0, slow: 2.0}, fast)
    assert shop.entrants() == [fast, slower_than_fallback]
    shop.time({fast: 1.0, slower_than_fallback: 2.0}, fast)
    assert shop.entrants() == []


def test_what_was_timed_is_not_timed_again(shop: Shop) -> None:
    shop.time({shop.publish("a"): 1.0, shop.publish("b"): 2.0})
    assert shop.entrants() == []


def test_what_could_not_be_told_from_the_fallback_is_timed_again(shop: Shop) -> None:
    """Also alone; beside the best one, where there is one."""
    unclear = shop.publish("a", 1.0, fallback_s=1.1, wide=1.5)
    assert shop.entrants() == [unclear]
    best, other = shop.publish("b", 2.0), shop.publish("c", 3.0)
    shop.time({best: 1.0, other: 2.0, unclear: 3.0})
    assert shop.entrants() == [best, unclear]
    assert shop.entrants(unclear) == [], "once a build"
    shop.time({best: 1.0, unclear: 3.0}, best, fallback_s=9.0)
    assert shop.entrants() == []


def test_a_newcomer_meets_the_best_so_far_alone(shop: Shop) -> None:
    first, second = shop.publish("a", 1.0), shop.publish("b", 2.0)
    shop.time({first: 2.0, second: 1.0})
    assert shop.beside("c") == second, "by the joint run, not by its proof"
    newcomer = shop.publish("c")
    assert shop.entrants() == [second, newcomer]


def test_a_proof_times_a_newcomer_beside_the_best_so_far(shop: Shop) -> None:
    assert shop.beside("a") == "", "the first one"
    first = shop.publish("a", 2.0)
    assert shop.beside("a") == "", "itself"
    assert shop.beside("b") == first
    assert shop.beside("b", (Bucket(dims={"n": DimRange(min=1, opt=1, max=1)}),)) == ""
    second = shop.publish("b", 1.0)
    shop.time({first: 2.0, second: 1.0}, first)
    assert shop.beside("a") == "", "one that was timed beside others before"
    settings = shop.worker.settings.model_copy(update={"benchmark_together": False})
    shop.worker = replace(shop.worker, settings=settings)
    assert shop.beside("c") == ""
