"""Keeps what a machine found to be buildable as documents, and picks what to build now.

A plan is of one model version and one class of nodes, whole: every kind and precision of
the recipe, whatever this run is to build.
"""

import logging
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from compiler_worker.devices import main_device
from compiler_worker.plans.build_keys import Wanted, built_on, plan_for
from compiler_worker.plans.refusals import Refusals
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_plan import BuildPlan, SkippedKey
from services.contracts.errors import InvalidRequestError, NotFoundError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.precisions import admitted_precisions
from services.contracts.registry.registry import Registry

logger = logging.getLogger(__name__)


def keep_plans(version: ModelVersion, wanted: Wanted, worker: WorkerContext) -> list[BuildPlan]:
    """Plan each wanted generation, by default this machine's, and keep the plans in the store.

    Args:
        version: what to plan for.
        wanted: generations; precisions that the recipe admits and has not built there are in the
            plans that are returned, and not in those that are kept; with kinds, the importer
            runs for these alone.
        worker: what all builds of this worker share.

    Raises:
        InvalidRecipeError: the recipe does not fit this model.
        InvalidRequestError: kinds or precisions are wanted that the recipe leaves out.
    """
    _check_wanted(version, wanted)
    devices = worker.devices
    refusals = Refusals(version.master, worker, wanted.kinds)
    plans = [
        plan_for(
            version,
            generation,
            devices,
            precisions=wanted.precisions,
            is_elsewhere=wanted.is_elsewhere,
            compiler=wanted.compiler,
            refusal=refusals.reason,
        )
        for generation in wanted.generations or (main_device(devices).parsed_generation,)
    ]
    for plan in plans:
        generation = Generation.parse(plan.node_class.generation)
        if worker.registry.write_plan(_narrowed(plan, (), built_on(generation, version))):
            logger.info(
                "planned %s version %d for %s: %d engines, %d combinations skipped",
                plan.model,
                plan.version,
                generation,
                len(plan.planned),
                len(plan.skipped),
            )
    return plans


def chosen(plans: Sequence[BuildPlan], wanted: Wanted, registry: Registry) -> list[BuildPlan]:
    """What of plans is wanted; what is left out for a failure is in `skipped`.

    Args:
        plans: all that this machine could build.
        wanted: kinds, precisions, keys, or only what did not fail in its last attempt; by default
            all.
        registry: has the records of earlier attempts.

    Raises:
        NotFoundError: none of the wanted keys is planned on this machine.
    """
    found = [_narrowed(plan, wanted.kinds, wanted.precisions) for plan in plans]
    if wanted.keys:
        return _only(found, wanted.keys)
    return [_untried(plan, registry) for plan in found] if wanted.is_untried else found


def plan_document(plan: BuildPlan) -> dict[str, Any]:
    """A plan as plain data, its keys with their digests."""
    document = plan.model_dump(mode="json")
    for entry, planned in zip(document["planned"], plan.planned, strict=True):
        entry["digest"] = planned.digest
    return document


def plan_lines(plan: BuildPlan) -> list[str]:
    """One line per engine or reason."""
    what = f"{plan.node_class.generation:<24}"
    return [
        *(f"{what} {p.key.kind:<12} {p.key.precision} {p.digest[:12]}" for p in plan.planned),
        *skipped_lines(plan),
    ]


def skipped_lines(plan: BuildPlan) -> list[str]:
    """One line per reason."""
    what = f"{plan.node_class.generation:<24}"
    return [f"{what} {s.kind:<12} {s.precision} skipped: {s.reason}" for s in plan.skipped]


def _check_wanted(version: ModelVersion, wanted: Wanted) -> None:
    """Refuse what the recipe leaves out."""
    # Replicas take any engine that is proven: they would serve with what the model's owner did
    # not choose.
    recipe = version.recipe
    precisions = admitted_precisions(recipe, has_calibration=version.calibration is not None)
    _check_choice("kind", wanted.kinds, recipe.kinds, version)
    _check_choice("precision", wanted.precisions, precisions, version)


def _check_choice(
    option: str, wanted: Sequence[StrEnum], allowed: Sequence[StrEnum], version: ModelVersion
) -> None:
    left_out = [each for each in wanted if each not in allowed]
    if left_out:
        raise InvalidRequestError(
            f"--{option} {left_out[0]}: the recipe of {version.name} version {version.version} "
            f"has {option}s: [{', '.join(allowed)}]; to add one: smelt models add {version.name} "
            f"{version.source or 'SOURCE'} --recipe FILE, where FILE is its "
            f"recipe with {option}s: [{', '.join([*allowed, *left_out])}]"
        )


def _narrowed(
    plan: BuildPlan, kinds: Sequence[EngineKind], precisions: Sequence[Precision]
) -> BuildPlan:
    """A plan without other kinds and precisions; without any named it keeps all."""

    def is_in(kind: str, precision: str) -> bool:
        return (not kinds or kind in kinds) and (not precisions or precision in precisions)

    planned = tuple(p for p in plan.planned if is_in(p.key.kind, p.key.precision))
    skipped = tuple(s for s in plan.skipped if is_in(s.kind, s.precision))
    return plan.model_copy(update={"planned": planned, "skipped": skipped})


def _only(plans: Sequence[BuildPlan], keys: Sequence[str]) -> list[BuildPlan]:
    """Plans of these keys alone."""
    missing = set(keys) - {planned.digest for plan in plans for planned in plan.planned}
    if len(missing) == len(set(keys)):
        raise NotFoundError(
            f"key {keys[0][:12]} is not planned on this machine; it may be of another toolchain, "
            "device or recipe. See what is: python -m compiler_worker plan MODEL"
        )
    for digest in missing:
        logger.warning("key %s is not planned on this machine; skipped", digest)
    named = [tuple(p for p in plan.planned if p.digest in keys) for plan in plans]
    return [
        plan.model_copy(update={"planned": planned, "skipped": ()})
        for plan, planned in zip(plans, named, strict=True)
    ]


def _untried(plan: BuildPlan, registry: Registry) -> BuildPlan:
    """A plan in which what failed last is skipped."""
    reasons = [(each, _last_failure(each.key, registry)) for each in plan.planned]
    failed = (
        SkippedKey(
            kind=each.key.kind,
            precision=each.key.precision,
            reason=f"failed when it was tried last: {reason}",
        )
        for each, reason in reasons
        if reason
    )
    left = tuple(each for each, reason in reasons if not reason)
    return plan.model_copy(update={"planned": left, "skipped": (*plan.skipped, *failed)})


def _last_failure(key: BuildKey, registry: Registry) -> str:
    records = registry.build_records(key.digest())
    if not records or records[-1].outcome.is_good:
        return ""
    return records[-1].reason or "without a reason"
