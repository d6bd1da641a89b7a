"""Which share of a GPU a replica asks for: the arithmetic, as tables."""

from collections.abc import Collection

import pytest

from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import (
    MasterRecord,
    ModelVersion,
    Proof,
    ProofOutcome,
    PublishedEngine,
    SideTiming,
    Timing,
)
from services.contracts.model.recipe import Recipe
from services.contracts.selection.gpu_share import GpuShare, gpu_share
from services.controller.deploy.gpu_shares import GpuShares
from services.controller.interfaces import DeploymentKey, NodePool
from tests.documents import AT, small_key, small_manifest

GENERATION = "cuda-sm90"
GIB = 2**30
CONTEXT_GIB = 0.52
# Large enough for four figures of a share, and what of it is shared.
LARGE_GIB = 10_000
SHARED_GIB = LARGE_GIB - 0.9


def version(num_parameters: int = 0, share: float | None = None) -> ModelVersion:
    master = MasterRecord(
        digest="d" * 64, files={}, inputs=(), outputs=(), opset=23, num_parameters=num_parameters
    )
    return ModelVersion(
        name="m",
        version=1,
        master=master,
        recipe=Recipe(gpu_share=share),
        source="s",
        source_fingerprint="f",
        created_at=AT,
    )


def timing(engine_gib: float, fallback_gib: float | None) -> Timing:
    side = None
    if fallback_gib is not None:
        held = int(fallback_gib * GIB)
        side = SideTiming(p50_s=1, p95_s=1, throughput=1, peak_memory_bytes=held)
    return Timing(
        bucket="b",
        sizes={},
        p50_s=1,
        p95_s=1,
        throughput=1,
        eager_p50_s=1,
        peak_memory_bytes=int(engine_gib * GIB),
        fallback=side,
    )


def proof(
    *timings: Timing,
    held_gib: float = 0,
    eager_gib: float = 0,
    outcome: ProofOutcome = ProofOutcome.PASSED,
) -> Proof:
    return Proof(
        outcome=outcome,
        timings=timings,
        created_at=AT,
        peak_memory_bytes=int(held_gib * GIB),
        eager_peak_memory_bytes=int(eager_gib * GIB),
    )


@pytest.mark.parametrize(
    ("num_parameters", "proofs", "loaded_gib"),
    [
        # Nothing is proven: fallback and engine by the size of the weights.
        (0, [], 2 * 0.5),
        (GIB // 4, [], 2 * (0.5 + 2)),
        # The largest size of the engine, and the fallback.
        (GIB, [proof(timing(1, 3), timing(2, 4), held_gib=1.5)], 2 + 4),
        # No fallback was timed: eager has the same weights.
        (GIB, [proof(timing(2, None), eager_gib=5)], 2 + 5),
        # Neither: an estimate of one, the measured size of the other.
        (GIB // 4, [proof(timing(3, None))], 3 + 2.5),
        (GIB // 4, [proof(held_gib=3)], 3 + 2.5),
        # Two at a time, never three: the two largest.
        (GIB, [proof(timing(1, 4)), proof(timing(2, 3))], 2 + 4),
        (GIB, [proof(timing(5, 1)), proof(timing(6, 2))], 5 + 6),
    ],
)
def test_a_replica_needs_a_context_and_the_two_largest(
    num_parameters: int, proofs: list[Proof], loaded_gib: float
) -> None:
    share = gpu_share(version(num_parameters), proofs, LARGE_GIB)
    assert share.needed * SHARED_GIB == pytest.approx(CONTEXT_GIB + loaded_gib)


@pytest.mark.parametrize(
    ("memory_gib", "loaded_gib", "asked", "needed"),
    [
        (140, (2, 5), 0.0591, 7.52 / 139.1),  # with headroom 8.22 GiB: 0.05909
        (80, (2, 5), 0.104, 7.52 / 79.1),
        (9, (2, 5), 1.0, 7.52 / 8.1),  # with headroom it would be more than one GPU
        (4, (2, 5), 1.0, 1.0),
        (1000, (0.1, 0.1), 0.0008, 0.72 / 999.1),
        # MiniLM on an H200: 1054 MiB, where a replica holds 895, and 1005 with two engines.
        (140, (372 / 1024, 100 / 1024), 0.0074, (0.52 + 472 / 1024) / 139.1),
        (0, (2, 5), 1.0, 0.0),  # unknown: the whole GPU, and never more
    ],
)
def test_a_share_is_what_is_needed_with_headroom_rounded_up(
    memory_gib: int, loaded_gib: tuple[float, float], asked: float, needed: float
) -> None:
    share = gpu_share(version(), [proof(timing(*loaded_gib))], memory_gib)
    assert share.asked == asked
    assert share.needed == pytest.approx(needed)


@pytest.mark.parametrize("memory_gib", [0, 80])
def test_the_recipe_counts_before_everything_else(memory_gib: int) -> None:
    share = gpu_share(version(share=0.3), [proof(timing(70, 70))], memory_gib)
    assert share == GpuShare(asked=0.3, needed=0.3)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01])
def test_a_share_of_a_recipe_is_of_one_gpu(share: float) -> None:
    with pytest.raises(ValueError, match="gpu_share"):
        Recipe(gpu_share=share)
    assert "gpu_share" not in Recipe().model_dump(mode="json")


def pool(generation: str, memory_gib: int, num_nodes: int = 1) -> NodePool:
    found = NodeClass(generation=generation, memory_gib=memory_gib)
    return NodePool(node_class=found, source="ray", num_nodes=num_nodes)


def published(generation: str, proven: Proof) -> PublishedEngine:
    manifest = small_manifest(small_key(generation=generation))
    return PublishedEngine(digest="e", manifest=manifest, proof=proven)


def test_proofs_count_where_they_passed_on_the_generation() -> None:
    engines = [
        published(GENERATION, proof(timing(2, 5))),
        published(GENERATION, proof(timing(50, 50), outcome=ProofOutcome.FAILED)),
        published("cuda-sm80", proof(timing(60, 60))),
    ]
    (found,) = (
        GpuShares(lambda masters: dict.fromkeys(masters, engines))
        .of([version()], [pool(GENERATION, 140)])
        .items()
    )
    assert found == (
        DeploymentKey("m", 1, GENERATION),
        gpu_share(version(), [engines[0].proof], 140),
    )


@pytest.mark.parametrize(
    ("pools", "memory_gib"),
    [
        ([pool(GENERATION, 140), pool(GENERATION, 80)], 80),
        ([pool(GENERATION, 140), pool(GENERATION, 0)], 0),
        ([pool(GENERATION, 140), pool(GENERATION, 80, num_nodes=0)], 140),
        ([pool(GENERATION, 140), pool("cpu-x86_64-v3", 8)], 140),
    ],
)
def test_the_smallest_memory_of_the_nodes_that_are_there_counts(
    pools: list[NodePool], memory_gib: int
) -> None:
    found = GpuShares(lambda masters: {master: [] for master in masters}).of([version()], pools)
    assert list(found.values()) == [gpu_share(version(), [], memory_gib)]


def test_a_node_that_is_away_is_remembered_and_a_fleet_of_cpus_reads_no_engines() -> None:
    asked: list[str] = []

    def engines_of(masters: Collection[str]) -> dict[str, list[PublishedEngine]]:
        asked.extend(masters)
        return {master: [] for master in masters}

    shares = GpuShares(engines_of)
    assert shares.of([version()], [pool("cpu-x86_64-v3", 8)]) == {}
    assert asked == []
    known = shares.of([version()], [pool(GENERATION, 140)])
    assert shares.of([version()], []) == known
