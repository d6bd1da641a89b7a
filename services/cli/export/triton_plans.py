"""Which plans of a version Triton may load: those that a replica would serve with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import ModelVersion, Proof, ProofOutcome, PublishedEngine
from services.contracts.registry.registry import Registry
from services.contracts.selection.selection import select

if TYPE_CHECKING:  # it needs a library of cryptography
    from services.contracts.security.signing import TrustRoot


def plans_of(
    registry: Registry,
    version: ModelVersion,
    generations: Sequence[str],
    trust: TrustRoot | None,
    *,
    with_rtx: bool,
) -> tuple[dict[str, PublishedEngine], list[str]]:
    """The plan that a replica would serve with on each generation, on the device of its proof.

    Args:
        registry: has the engines.
        version: its recipe is what engines must be for.
        generations: wanted ones; none for those of all GPUs that the master has an engine for.
        trust: whose signatures count; None where none are asked for.
        with_rtx: take plans of TensorRT-RTX where there are no others; Triton's own backend
            cannot load them.

    Returns:
        The plan of each compute capability that has one, as "8.9"; why the others have none.

    Raises:
        InvalidRequestError: a generation is none of a GPU.
    """
    every = registry.engines(version.master.digest)
    found = sorted({engine.manifest.key.generation for engine in every})
    untrusted = registry.untrusted(every, version.master, trust)
    runs = registry.joint_runs(version.master.digest, trust)
    plans: dict[str, PublishedEngine] = {}
    missing: list[str] = []
    for generation in generations or filter(_is_gpu, found):
        capability = _capability(generation)
        ours = [engine for engine in every if _is_plan(engine, generation)]
        of_tensorrt = [e for e in ours if "tensorrt" in e.manifest.key.toolchain]
        loadable = of_tensorrt or (ours if with_rtx else [])
        why = (
            "only of TensorRT-RTX, which Triton's backend does not load"
            if ours
            else "there is none"
        )
        if loadable:
            why = f"none of {len(loadable)} ran on such a device: not proven"
        proof = max((e.proof for e in loadable), key=_rank, default=None)
        if proof and proof.device:
            chosen = select(loadable, proof.device, version=version, untrusted=untrusted, runs=runs)
            why = "; ".join(f"{r.digest[:12]}: {r.detail}" for r in chosen.rejections)
            if chosen.engine:
                plans[capability] = chosen.engine
        if capability not in plans:
            missing.append(f"no plan for {capability}: {why}")
    return plans, missing


def library_of(engine: PublishedEngine) -> str:
    """What loads a plan, with its version."""
    return ", ".join(f"{name} {version}" for name, version in engine.manifest.key.toolchain.items())


def _rank(proof: Proof) -> tuple[bool, bool, str]:
    return proof.outcome is ProofOutcome.PASSED, proof.device is not None, proof.created_at


def _is_plan(engine: PublishedEngine, generation: str) -> bool:
    key = engine.manifest.key
    return key.kind is EngineKind.TENSORRT and key.generation == generation


def _is_gpu(generation: str) -> bool:
    # A newer Smelt knows more generations than `parse`.
    return generation.startswith(f"{Platform.CUDA}-sm")


def _capability(generation: str) -> str:
    parsed = Generation.parse(generation)
    if parsed.platform is not Platform.CUDA:
        raise InvalidRequestError(f"generation '{generation}': plans are for GPUs alone")
    return f"{parsed.major}.{parsed.minor}"
