"""Which share of a GPU a replica asks Ray for: the memory that it needs over what the GPU has.

    needed = (context + the two largest of what it may load) / (memory of the GPU - a check)
    asked  = (context + the two largest * headroom) / (memory of the GPU - a check),
             rounded up to 0.0001, at most 1

Two, because the next engine is loaded beside the one that serves, and the one before stays warm;
a third is never there. What one of them holds is what proofs measured: what the device lost
while it was loaded and run, so weights, workspaces and torch's kernels are in it, and the context
is not. A check is the process that runs an engine before a replica loads it: one at a time on a
host, so that each GPU keeps room for one, and not each replica.

A proof looks at the whole device, so what others took or gave back meanwhile is in its figures.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.contracts.model.manifest import ModelVersion, Proof, ProofOutcome, PublishedEngine

_GIB = 2**30
# On an H200 with torch 2.11 and driver 580 a process with one engine of MiniLM holds 895 MiB, of
# which its proof measured 372.
_CONTEXT_BYTES = 0.52 * _GIB
_CHECK_BYTES = 0.9 * _GIB
# Other sizes than those timed, fragments of allocators, and what two proofs of one engine differ
# by: a share is outgrown only when this is used up. Sixty replicas on an H200 needed none of it.
_HEADROOM = 1.1
# Of what no proof has measured: its weights in float32 and as much again for what it computes, and
# the libraries' own workspaces (0.26 GiB on that H200).
_UNPROVEN_PER_WEIGHT = 2.0
_UNPROVEN_BASE_BYTES = 0.5 * _GIB
_BYTES_PER_PARAMETER = 4
_PLACES = 10_000


@dataclass(frozen=True, kw_only=True)
class GpuShare:
    """Shares of one GPU, from 0 to 1.

    Attributes:
        asked: what a replica that is started now asks for.
        needed: the least that it has to have; 0 when that is not known.
    """

    asked: float = 1.0
    needed: float = 0.0


def gpu_share(version: ModelVersion, proofs: Sequence[Proof], memory_gib: int) -> GpuShare:
    """The share of a GPU that each replica of a version has to have.

    Args:
        version: with the recipe, whose `gpu_share` counts before everything else.
        proofs: of its engines that may serve there.
        memory_gib: of the GPU; 0 when unknown: the whole of it then.
    """
    if given := version.recipe.gpu_share:
        return GpuShare(asked=given, needed=given)
    if not memory_gib:
        return GpuShare()
    shared_bytes = memory_gib * _GIB - _CHECK_BYTES
    needed_bytes = replica_bytes(version.master.num_parameters, proofs)
    needed = needed_bytes / shared_bytes
    asked = (_CONTEXT_BYTES + (needed_bytes - _CONTEXT_BYTES) * _HEADROOM) / shared_bytes
    return GpuShare(asked=min(math.ceil(asked * _PLACES) / _PLACES, 1.0), needed=min(needed, 1.0))


def passed_proofs(engines: Iterable[PublishedEngine], generation: str) -> list[Proof]:
    """Of the engines that may serve on a generation, by what was proven."""
    return [
        engine.proof
        for engine in engines
        if engine.manifest.key.generation == generation
        and engine.proof.outcome is ProofOutcome.PASSED
    ]


def replica_bytes(num_parameters: int, proofs: Sequence[Proof]) -> float:
    """Device memory of a replica's context and the two largest of what it may load."""
    unproven = _UNPROVEN_BASE_BYTES + _UNPROVEN_PER_WEIGHT * _BYTES_PER_PARAMETER * num_parameters
    fallback = max((_fallback_bytes(proof) for proof in proofs), default=0)
    loaded = [fallback or unproven, *map(_engine_bytes, proofs)]
    if not proofs:
        loaded.append(unproven)
    return _CONTEXT_BYTES + sum(sorted(loaded)[-2:])


def _engine_bytes(proof: Proof) -> int:
    return max([proof.peak_memory_bytes, *(t.peak_memory_bytes or 0 for t in proof.timings)])


def _fallback_bytes(proof: Proof) -> int:
    """Of the fallback, or of eager where that was not timed: the same weights in float32."""
    timed = [t.fallback.peak_memory_bytes for t in proof.timings if t.fallback]
    return max(timed, default=proof.eager_peak_memory_bytes)
