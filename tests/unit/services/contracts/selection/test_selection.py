"""Which engine serves: yes and no pairs, the order of those that fit, and why none did."""

from collections.abc import Callable
from typing import Any

import pytest

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import (
    Proof,
    ProofOutcome,
    PublishedEngine,
)
from services.contracts.selection.selection import (
    FallbackReason,
    mean_speedup,
    reason_words,
    select,
)

MakeEngine = Callable[..., PublishedEngine]
MakeDevice = Callable[..., DeviceFacts]
MakeProof = Callable[..., Proof]
CPU = {"name": "cpu", "driver": "", "toolchain": {"openvino": "2026.1"}}
CPU_KEY = {
    "kind": EngineKind.OPENVINO,
    "device_name": "",
    "device_memory_gib": 0,
    "driver": "",
    "toolchain": {"openvino": "2026.1"},
}
AHEAD_OF_TIME = {"device_name": "", "device_memory_gib": 0, "driver": ""}

# built for, proven on, node: does it serve, or why not
PAIRS = [
    ("cuda-sm90", "cuda-sm90", "cuda-sm90", None),
    ("cuda-sm75", "cuda-sm75", "cuda-sm75", None),
    ("cuda-sm103", "cuda-sm103", "cuda-sm103", None),
    ("cuda-sm80", "cuda-sm80", "cuda-sm86", FallbackReason.NO_ENGINE_FOR_GENERATION),
    ("cuda-sm86", "cuda-sm86", "cuda-sm80", FallbackReason.NO_ENGINE_FOR_GENERATION),
    ("cuda-sm100", "cuda-sm100", "cuda-sm103", FallbackReason.NO_ENGINE_FOR_GENERATION),
    ("cuda-sm120", "cuda-sm120", "cuda-sm121", FallbackReason.NO_ENGINE_FOR_GENERATION),
    ("cuda-sm90", "cuda-sm90", "cpu-x86_64-amx", FallbackReason.NO_ENGINE_FOR_GENERATION),
    ("cpu-x86_64-v3", "cpu-x86_64-v3", "cuda-sm90", FallbackReason.NO_ENGINE_FOR_GENERATION),
    ("cpu-x86_64-v3", "cpu-x86_64-v3", "cpu-x86_64-v3", None),
    ("cpu-x86_64-v3", "cpu-x86_64-v3", "cpu-x86_64-avx512", None),
    (
        "cpu-x86_64-avx512",
        "cpu-x86_64-avx512",
        "cpu-x86_64-v3",
        FallbackReason.NO_ENGINE_FOR_GENERATION,
    ),
    # Proven on a higher class than the node: the node may compute in another way.
    ("cpu-x86_64-v3", "cpu-x86_64-amx", "cpu-x86_64-avx512", FallbackReason.NOT_PROVEN),
    ("cpu-x86_64-v3", "cpu-x86_64-amx", "cpu-x86_64-amx", None),
    ("cpu-aarch64-neon", "cpu-aarch64-neon", "cpu-aarch64-neon", None),
    (
        "cpu-aarch64-neon",
        "cpu-aarch64-neon",
        "cpu-x86_64-v3",
        FallbackReason.NO_ENGINE_FOR_GENERATION,
    ),
    # Known to a newer Smelt only: nothing here may fall over it.
    (
        "cpu-x86_64-avx10",
        "cpu-x86_64-avx10",
        "cpu-x86_64-amx",
        FallbackReason.NO_ENGINE_FOR_GENERATION,
    ),
    ("cpu-x86_64-v3", "cpu-x86_64-avx10", "cpu-x86_64-amx", FallbackReason.NOT_PROVEN),
    # Built ahead of time and proven on another generation.
    ("cuda-sm90", "cuda-sm80", "cuda-sm90", FallbackReason.NOT_PROVEN),
]


@pytest.mark.parametrize(("built_for", "proven_on", "node", "reason"), PAIRS)
def test_yes_and_no_pairs(
    make_engine: MakeEngine,
    make_device: MakeDevice,
    make_proof: MakeProof,
    built_for: str,
    proven_on: str,
    node: str,
    reason: FallbackReason | None,
) -> None:
    proof = make_proof(device=make_device(generation=proven_on))
    engine = make_engine(proof, generation=built_for)
    selection = select([engine], make_device(generation=node))
    assert selection.fallback_reason is reason
    assert selection.engine == (engine if reason is None else None)
    assert selection.runners_up == ()
    if reason is not None:
        (rejection,) = selection.rejections
        assert (rejection.digest, rejection.reason) == (engine.digest, reason)
        wanted = proven_on if reason is FallbackReason.NOT_PROVEN else built_for
        assert wanted in rejection.detail
        assert node in rejection.detail


def test_without_engines_the_fallback_says_so(make_device: MakeDevice) -> None:
    selection = select([], make_device())
    assert selection.engine is None
    assert selection.fallback_reason is FallbackReason.NO_ENGINE
    assert selection.rejections == ()


@pytest.mark.parametrize(
    ("wanted", "found", "detail"),
    [
        ({"tensorrt": "10.14"}, {"tensorrt": "10.14", "torch": "2.13.0"}, ""),
        ({}, {}, ""),
        (
            {"tensorrt": "10.14"},
            {"tensorrt": "10.15"},
            "tensorrt 10.14 wanted, 10.15 found",
        ),
        ({"tensorrt": "10.14"}, {}, "tensorrt 10.14 wanted, none found"),
        (
            {"triton": "3.7", "torch": "2.13.0"},
            {"triton": "3.6", "torch": "2.12.0"},
            "torch 2.13.0 wanted, 2.12.0 found; triton 3.7 wanted, 3.6 found",
        ),
    ],
)
def test_every_library_of_the_key_must_be_the_same(
    make_engine: MakeEngine,
    make_device: MakeDevice,
    wanted: dict[str, str],
    found: dict[str, str],
    detail: str,
) -> None:
    selection = select([make_engine(toolchain=wanted)], make_device(toolchain=found))
    if not detail:
        assert selection.fallback_reason is None
        return
    assert selection.fallback_reason is FallbackReason.TOOLCHAIN_MISMATCH
    assert selection.rejections[0].detail == detail


@pytest.mark.parametrize("outcome", [ProofOutcome.FAILED, ProofOutcome.NOT_RUN])
def test_only_a_passed_proof_serves(
    make_engine: MakeEngine,
    make_device: MakeDevice,
    make_proof: MakeProof,
    outcome: ProofOutcome,
) -> None:
    engine = make_engine(make_proof(outcome=outcome, reason="said the prover"))
    selection = select([engine], make_device())
    assert selection.engine is None
    assert selection.fallback_reason is FallbackReason.NOT_PROVEN
    assert selection.rejections[0].detail == f"proof {outcome.value}: said the prover"


def test_a_proof_without_a_device_proves_nothing(
    make_engine: MakeEngine, make_device: MakeDevice, make_proof: MakeProof
) -> None:
    selection = select([make_engine(make_proof(device=None))], make_device())
    assert selection.fallback_reason is FallbackReason.NOT_PROVEN
    assert "no device" in selection.rejections[0].detail


def test_an_engine_that_failed_to_load_here_makes_room_for_the_next(
    make_engine: MakeEngine, make_device: MakeDevice, make_proof: MakeProof
) -> None:
    fast = make_engine(make_proof(speedup=9.0))
    slow = make_engine(make_proof(speedup=2.0), builder_options={"level": "1"})
    selection = select([fast, slow], make_device(), failed_digests=frozenset({fast.digest}))
    assert selection.engine == slow
    assert [rejection.reason for rejection in selection.rejections] == [FallbackReason.LOAD_FAILED]
    both = frozenset({fast.digest, slow.digest})
    nothing = select([fast, slow], make_device(), failed_digests=both)
    assert nothing.engine is None
    assert nothing.fallback_reason is FallbackReason.LOAD_FAILED


def test_the_fastest_comes_first_whatever_the_order(
    make_engine: MakeEngine, make_device: MakeDevice, make_proof: MakeProof
) -> None:
    never_timed = make_engine(builder_options={"n": "never timed"})
    # Either way round, so that no order of digests can pass for the order of speeds.
    for speeds in ((7.0, 5.0, 3.0), (3.0, 5.0, 7.0)):
        timed = [
            make_engine(make_proof(speedup=speed), builder_options={"n": str(number)})
            for number, speed in enumerate(speeds)
        ]
        ranked = sorted(timed, key=lambda e: mean_speedup(e.proof.timings), reverse=True)
        selection = select([never_timed, *timed], make_device())
        assert [selection.engine, *selection.runners_up] == [*ranked, never_timed]


# Each row is less exact than the one above it, and faster.
EXACTNESS: list[dict[str, Any]] = [
    {},
    {"driver": "570.9"},
    {"device_memory_gib": 71},
    {"device_memory_gib": 71, "driver": "570.9"},
    {"device_name": "NVIDIA H100"},
    {"device_name": "NVIDIA H100", "driver": "570.9"},
]


def test_exact_device_facts_count_more_than_speed(
    make_engine: MakeEngine, make_device: MakeDevice, make_proof: MakeProof
) -> None:
    ranked = [
        make_engine(make_proof(speedup=float(speed)), **changes)
        for speed, changes in enumerate(EXACTNESS, start=1)
    ]
    selection = select(reversed(ranked), make_device())
    assert [selection.engine, *selection.runners_up] == ranked


def test_an_engine_for_the_whole_generation_is_as_exact_as_one_for_the_device(
    make_engine: MakeEngine, make_device: MakeDevice, make_proof: MakeProof
) -> None:
    ahead = make_engine(make_proof(speedup=5.0), **AHEAD_OF_TIME)
    bound = make_engine(make_proof(speedup=4.0))
    assert select([bound, ahead], make_device()).engine == ahead


def test_the_nodes_own_class_comes_before_a_faster_lower_one(
    make_engine: MakeEngine, make_device: MakeDevice, make_proof: MakeProof
) -> None:
    node = make_device(generation="cpu-x86_64-amx", **CPU)
    lower_proof = make_proof(device=make_device(generation="cpu-x86_64-v3", **CPU), speedup=9.0)
    lower = make_engine(lower_proof, generation="cpu-x86_64-v3", **CPU_KEY)
    own = make_engine(make_proof(device=node, speedup=2.0), generation="cpu-x86_64-amx", **CPU_KEY)
    selection = select([lower, own], node)
    assert (selection.engine, selection.runners_up) == (own, (lower,))


def test_equal_engines_are_ordered_by_digest(
    make_engine: MakeEngine, make_device: MakeDevice
) -> None:
    engines = [make_engine(builder_options={"n": str(number)}) for number in range(5)]
    selection = select(engines, make_device())
    by_digest = sorted(engines, key=lambda engine: engine.digest)
    assert [selection.engine, *selection.runners_up] == by_digest


def test_the_fallback_is_explained_by_the_engine_that_came_nearest(
    make_engine: MakeEngine, make_device: MakeDevice, make_proof: MakeProof
) -> None:
    rejected = {
        FallbackReason.NO_ENGINE_FOR_GENERATION: make_engine(generation="cuda-sm80"),
        FallbackReason.TOOLCHAIN_MISMATCH: make_engine(toolchain={"tensorrt": "9"}),
        FallbackReason.NOT_PROVEN: make_engine(make_proof(outcome=ProofOutcome.NOT_RUN)),
        FallbackReason.LOAD_FAILED: make_engine(builder_options={"level": "1"}),
    }
    failed = frozenset({rejected[FallbackReason.LOAD_FAILED].digest})
    seen: list[PublishedEngine] = []
    for reason, engine in rejected.items():
        seen.append(engine)
        for engines in (seen, seen[::-1]):
            selection = select(engines, make_device(), failed_digests=failed)
            assert selection.fallback_reason is reason
            assert len(selection.rejections) == len(seen)


def test_reasons_are_words_for_people_and_codes_of_other_releases_stay() -> None:
    assert not any("_" in reason_words(reason.value) for reason in FallbackReason)
    assert reason_words("of_another_release") == "of_another_release"
    assert reason_words("") == ""


def test_the_first_fault_of_an_engine_is_its_reason(
    make_engine: MakeEngine, make_device: MakeDevice, make_proof: MakeProof
) -> None:
    """A wrong generation is said before the proof that this engine lacks as well."""
    engine = make_engine(make_proof(outcome=ProofOutcome.FAILED), generation="cuda-sm80")
    selection = select([engine], make_device(), failed_digests=frozenset({engine.digest}))
    assert selection.rejections[0].reason is FallbackReason.NO_ENGINE_FOR_GENERATION
