"""Times proven engines together, so that the best is chosen by figures of one run.

A proof times its engine alone with eager and the fallback. When the last engine of a build is
proven, all that could serve are timed once more, in turns at each shape. Later newcomers are
timed beside the one that was best before, which links their figures to the earlier runs'. So are
those that could not be told from the fallback; a controller launches that again after a while.
"""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compiler_worker.child_jobs import TIME
from compiler_worker.process import run_child
from compiler_worker.proving import ProofJob, proof_request
from compiler_worker.publish import now
from compiler_worker.requests import ChildEvent, JointEntrant, JointRequest, JointResult
from compiler_worker.turns import awaited_lease, leased
from compiler_worker.workshop import Workshop
from services.contracts.errors import ProofError, SmeltError
from services.contracts.hardware import DeviceFacts
from services.contracts.joint_order import joint_order, unsettled
from services.contracts.joint_run import JointRun
from services.contracts.manifest import ModelVersion, PublishedEngine
from services.contracts.selection import GATED, fastest_first, select

logger = logging.getLogger(__name__)

# All are loaded at once, and each adds its share of seconds: the slowest by their proofs wait.
MAX_ENTRANTS = 8
# Of the memory that a proof may take; the fallback's compiler needs some too.
_ENGINES_SHARE = 0.5
_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Field:
    """Who takes part in a run.

    Attributes:
        incumbent: digest of the best one so far, "" without one; it takes part.
        left_out: why others do not, by digest.
    """

    engines: tuple[PublishedEngine, ...]
    incumbent: str
    left_out: dict[str, str]


def time_together(version: ModelVersion, workshop: Workshop) -> Iterator[JointRun]:
    """Time what is proven for this machine's devices and was not compared yet.

    What fails here fails no build: engines are then compared by their own proofs.
    """
    if not workshop.settings.benchmark_together:
        return
    for device in workshop.devices.values():
        try:
            run = _time_on(device, version, workshop)
        except SmeltError as error:
            logger.warning(
                "engines of %s are compared by their own proofs on %s: %s",
                version.name, device.generation, error,
            )  # fmt: skip
            continue
        except Exception:
            # A fault of our own: the engines are built, and their builder is to hear of them.
            logger.exception("engines of %s are not timed together", version.name)
            continue
        if run is not None:
            yield run


def field_of(version: ModelVersion, device: DeviceFacts, workshop: Workshop) -> Field | None:
    """Who has to be timed on a device; None when nobody has to."""
    registry = workshop.registry
    runs = registry.joint_runs(version.master.digest)
    candidates = _candidates(registry.engines(version.master.digest), device, version)
    known = {engine.digest: engine for engine in candidates}
    joint = joint_order(known, device.generation, runs)
    again = unsettled(candidates, version.recipe, device.generation, runs)
    if not again and (not joint.uncovered or len(known) < 2):
        return None
    best = joint_order(known.keys() - joint.uncovered, device.generation, runs).order[:1]
    waiting = (joint.uncovered | again).difference(best)
    newcomers = fastest_first(known[digest] for digest in waiting)
    # Without an incumbent, whoever was left out of an earlier run gets another chance.
    others = newcomers if best else fastest_first(candidates)
    entrants, left_out = _bounded([*(known[digest] for digest in best), *others], workshop)
    return Field(engines=entrants, incumbent="".join(best), left_out=left_out)


def _time_on(device: DeviceFacts, version: ModelVersion, workshop: Workshop) -> JointRun | None:
    field = field_of(version, device, workshop)
    if field is None:
        return None
    key = field.engines[0].manifest.key
    with awaited_lease(_lease_digest(version, device), key, workshop) as lease:
        # Whoever had it before may have timed the same.
        field = field_of(version, device, workshop)
        if field is None:
            return None
        run = run_field(field, version, device, leased(workshop, lease))
        workshop.registry.add_joint_run(run)
    return run


def _candidates(
    engines: Sequence[PublishedEngine], device: DeviceFacts, version: ModelVersion
) -> list[PublishedEngine]:
    """All that could serve a version, also those that the gate keeps from it so far."""
    found = select(engines, device, version=version)
    digests = {rejection.digest for rejection in found.rejections if rejection.reason in GATED}
    fitting = [each for each in (found.engine, *found.runners_up) if each is not None]
    fitting += [engine for engine in engines if engine.digest in digests]
    timed = [engine for engine in fitting if engine.proof.timings]
    # Without buckets in the recipe, another release may have chosen others.
    return [each for each in timed if each.manifest.buckets == timed[0].manifest.buckets]


def _bounded(
    engines: Sequence[PublishedEngine], workshop: Workshop
) -> tuple[tuple[PublishedEngine, ...], dict[str, str]]:
    """The first ones, as far as number and memory allow, but two at least."""
    left_bytes = workshop.settings.memory_limit_gib * _GIB * _ENGINES_SHARE
    taken: list[PublishedEngine] = []
    left_out: dict[str, str] = {}
    for engine in engines:
        left_bytes -= engine.proof.peak_memory_bytes
        if len(taken) >= 2 and left_bytes < 0:
            left_out[engine.digest] = "not timed with the others: their memory is at its limit"
        elif len(taken) >= MAX_ENTRANTS:
            left_out[engine.digest] = f"not among the {MAX_ENTRANTS} fastest by their own proofs"
        else:
            taken.append(engine)
    return tuple(taken), left_out


def run_field(
    field: Field, version: ModelVersion, device: DeviceFacts, workshop: Workshop
) -> JointRun:
    """One run in a throw-away process, signed if this worker has a key; it is not kept yet.

    Raises:
        ProofError: there is none: the child was ended, or too few engines run in it.
    """
    result = _result(field, version, device, workshop)
    run = JointRun(
        master_digest=version.master.digest,
        device=device,
        incumbent=field.incumbent,
        shapes=result.shapes,
        left_out=field.left_out | result.failed,
        fallback=result.fallback,
        created_at=now(),
    )
    if workshop.signer is None:
        return run
    (signature,) = workshop.signer.sign(run.payload()).signatures
    return run.model_copy(update={"signature": signature})


def _result(
    field: Field, version: ModelVersion, device: DeviceFacts, workshop: Workshop
) -> JointResult:
    key = field.engines[0].manifest.key
    with workshop.work_folder(key) as folder:
        request = JointRequest(
            entrants=tuple(
                JointEntrant(
                    proof=proof_request(_job(engine, version, device, workshop), workshop, folder),
                    held_bytes=engine.proof.peak_memory_bytes,
                )
                for engine in field.engines
            ),
            eager_held_bytes=field.engines[0].proof.eager_peak_memory_bytes,
        )
        outcome = run_child(
            TIME, request, folder, workshop.proof_limits,
            lambda event: workshop.on_progress(key, _told(event, len(field.engines))),
        )  # fmt: skip
    result = outcome.require(ProofError)
    if fault := result.failed.get(field.incumbent):
        # Without it nothing links this run to the earlier ones.
        raise ProofError(f"the best engine so far, {field.incumbent[:12]}: {fault}")
    return result


def _told(event: ChildEvent, num_engines: int) -> ChildEvent:
    """Says whose stage this is: events go under the key of one engine."""
    if event.stage is None:
        return event
    words = f"{num_engines} engines in turns, eager and the fallback beside them"
    return event.model_copy(update={"line": words})


def _job(
    engine: PublishedEngine, version: ModelVersion, device: DeviceFacts, workshop: Workshop
) -> ProofJob:
    return ProofJob(
        manifest=engine.manifest,
        engine_dir=workshop.registry.materialise_engine(engine),
        version=version,
        device=device,
    )


def _lease_digest(version: ModelVersion, device: DeviceFacts) -> str:
    """What the lease of a joint run is of: one master on one generation."""
    scope = f"joint run {version.master.digest} {device.generation}"
    return hashlib.sha256(scope.encode()).hexdigest()
