"""Who takes part in a joint run: what is proven and new, the best so far, within bounds."""

from pathlib import Path

import pytest

from compiler_worker.settings import CompilerSettings
from compiler_worker.timing.joint import MAX_ENTRANTS, Entrants, entrants_of
from compiler_worker.worker_context import WorkerContext
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
from services.contracts.model.recipe import Bucket, Recipe
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
    name="m", version=1, master=MASTER, recipe=RECIPE, source="m.onnx", source_fingerprint="f",
    created_at=AT,
)  # fmt: skip
GIB = 2**30


class Shop:
    """A worker on an empty store, with what a test publishes there."""

    def __init__(self, folder: Path) -> None:
        self.worker = WorkerContext(
            registry=Registry(open_store("memory:"), folder),
            settings=CompilerSettings(cache_dir=folder, memory_limit_gib=8),
            devices={},
        )

    def publish(
        self,
        name: str,
        p50_s: float = 1.0,
        *,
        fallback_s: float = 100.0,
        held_gib: float = 0.0,
        wide: float = 1.0,
        outcome: ProofOutcome = ProofOutcome.PASSED,
    ) -> str:
        """An engine that took so long in its proof; its digest."""
        key = small_key(
            buckets=RECIPE.buckets,
            builder_options={"name": name},
            proof_terms=proof_terms(RECIPE, Precision.FP32, None),
        )
        timing = Timing(
            bucket="b", sizes={}, eager_p50_s=100.0, fallback=side(fallback_s),
            p50_s=p50_s, p95_s=p50_s, throughput=1.0, ratio=ratio(fallback_s / p50_s, wide),
        )  # fmt: skip
        proof = Proof(
            outcome=outcome, device=DEVICE, timings=(timing,), created_at=AT,
            peak_memory_bytes=int(held_gib * GIB),
        )  # fmt: skip
        self.worker.registry.publish_engine(small_manifest(key), {}, proof)
        return key.digest()

    def time(
        self, engines_s: dict[str, float], incumbent: str = "", fallback_s: float = 0.0
    ) -> None:
        """A joint run that was; with the fallback it measured all engines well."""
        baseline_s = fallback_s or 9.0
        shape = JointTiming(
            bucket="b", sizes={}, eager=side(9.0),
            fallback=side(fallback_s) if fallback_s else None,
            engines={
                digest: side(p50_s).model_copy(update={"ratio": ratio(baseline_s / p50_s, 1.0)})
                for digest, p50_s in engines_s.items()
            },
        )  # fmt: skip
        self.worker.registry.add_joint_run(
            JointRun(
                master_digest=MASTER.digest,
                device=DEVICE,
                shapes=(shape,),
                created_at=AT,
                incumbent=incumbent,
            )
        )

    def field(self) -> Entrants | None:
        return entrants_of(VERSION, DEVICE, self.worker)

    def entrants(self) -> list[str]:
        found = self.field()
        assert found is not None
        return [engine.digest for engine in found.engines]


def ratio(median: float, wide: float) -> Ratio:
    return Ratio(median=median, low=median / wide, high=median * wide, num_pairs=20)


def side(p50_s: float) -> SideTiming:
    return SideTiming(p50_s=p50_s, p95_s=p50_s, throughput=1 / p50_s, peak_memory_bytes=1)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_one_engine_alone_was_timed_in_its_proof(shop: Shop) -> None:
    shop.publish("a")
    assert shop.field() is None


def test_all_take_part_the_first_time_but_what_could_not_serve(shop: Shop) -> None:
    slow, fast = shop.publish("a", 2.0), shop.publish("b", 1.0)
    slower_than_fallback = shop.publish("c", 3.0, fallback_s=1.0)
    shop.publish("failed", outcome=ProofOutcome.FAILED)
    entrants = shop.field()
    assert entrants is not None
    assert (entrants.incumbent, entrants.left_out) == ("", {})
    assert shop.entrants() == [fast, slow, slower_than_fallback]


def test_what_was_timed_is_not_timed_again(shop: Shop) -> None:
    shop.time({shop.publish("a"): 1.0, shop.publish("b"): 2.0})
    assert shop.field() is None


def test_what_could_not_be_told_from_the_fallback_is_timed_again(shop: Shop) -> None:
    """Also alone; beside the best one, where there is one."""
    unclear = shop.publish("a", 1.0, fallback_s=1.1, wide=1.5)
    assert shop.entrants() == [unclear]
    best, other = shop.publish("b", 2.0), shop.publish("c", 3.0)
    shop.time({best: 1.0, other: 2.0, unclear: 3.0})
    assert shop.entrants() == [best, unclear]
    shop.time({best: 1.0, unclear: 3.0}, best, fallback_s=9.0)
    assert shop.field() is None


def test_a_newcomer_meets_the_best_so_far_alone(shop: Shop) -> None:
    first, second = shop.publish("a", 1.0), shop.publish("b", 2.0)
    shop.time({first: 2.0, second: 1.0})
    newcomer = shop.publish("c")
    entrants = shop.field()
    assert entrants is not None
    assert entrants.incumbent == second, "by the joint run, not by its proof"
    assert shop.entrants() == [second, newcomer]


def test_the_slowest_are_left_out_when_there_are_too_many(shop: Shop) -> None:
    digests = [shop.publish(f"n{n}", 1.0 + n) for n in range(MAX_ENTRANTS + 2)]
    entrants = shop.field()
    assert entrants is not None
    assert shop.entrants() == digests[:MAX_ENTRANTS]
    assert set(entrants.left_out) == set(digests[MAX_ENTRANTS:])
    assert "not among the 8 fastest" in entrants.left_out[digests[-1]]


def test_memory_bounds_all_but_the_two_fastest(shop: Shop) -> None:
    sizes_gib = (5.0, 5.0, 0.5)
    digests = [shop.publish(f"n{n}", 1.0 + n, held_gib=gib) for n, gib in enumerate(sizes_gib)]
    entrants = shop.field()
    assert entrants is not None
    assert shop.entrants() == digests[:2]
    assert "memory" in entrants.left_out[digests[2]]
