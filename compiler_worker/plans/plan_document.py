"""Keeps what a machine found to be buildable as documents, and picks what to build now.

A plan is of one model version and one class of nodes, whole: every kind and precision of
the recipe, whatever this run is to build.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from compiler_worker.builders.base import Builder
from compiler_worker.builders.select import builder_for
from compiler_worker.devices import Devices, main_device
from compiler_worker.plans.build_keys import BuildTable, SkippedBuild, Wanted, plan_builds
from compiler_worker.plans.refusals import Refusals
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_plan import BuildPlan, PlannedKey, SkippedKey
from services.contracts.builds.code_digest import proof_code
from services.contracts.errors import InvalidRequestError, NotFoundError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.precisions import admitted_precisions
from services.contracts.registry.registry import Registry
from services.contracts.text.moments import timestamp, utc_now

logger = logging.getLogger(__name__)


def keep_plans(
    version: ModelVersion, wanted: Wanted, worker: WorkerContext, refusals: Refusals | None = None
) -> list[BuildPlan]:
    """Plan each wanted generation, by default this machine's, and keep the plans in the store.

    Args:
        version: what to plan for.
        wanted: generations, kinds and precisions.
        worker: what all builds of this worker share.
        refusals: what is known of the master already.

    Raises:
        InvalidRecipeError: the recipe does not fit this model.
        InvalidRequestError: kinds or precisions are wanted that the recipe leaves out.
    """
    _check_wanted(version, wanted)
    devices = worker.devices
    generations = wanted.generations or (main_device(devices).parsed_generation,)
    refusals = refusals or Refusals(version.master, worker)
    plans = [
        plan_for(
            version,
            generation,
            devices,
            refusal=refusals.reason,
            is_elsewhere=wanted.is_elsewhere,
            compiler=wanted.compiler,
        )
        for generation in generations
    ]
    for plan in plans:
        if worker.registry.write_plan(plan):
            logger.info(
                "planned %s version %d for %s: %d engines, %d combinations skipped",
                plan.model,
                plan.version,
                plan.node_class.generation,
                len(plan.planned),
                len(plan.skipped),
            )
    return plans


def plan_for(
    version: ModelVersion,
    generation: Generation,
    devices: Devices,
    find_builder: Callable[[EngineKind], Builder] = builder_for,
    *,
    is_elsewhere: bool = False,
    compiler: str = "",
    refusal: Callable[[EngineKind], str] = lambda _: "",
) -> BuildPlan:
    """The whole plan of a model version for one generation, made on this machine.

    Args:
        version: what is served, and by which recipe.
        generation: the one that is planned for.
        devices: what this machine has.
        find_builder: builder of a kind.
        is_elsewhere: the engines are for other nodes, whatever devices this machine has.
        compiler: what the launcher of this run calls its compiler; "" when unknown.
        refusal: why a kind cannot take the master at all, "" where it can.

    Raises:
        InvalidRecipeError: the recipe names dimensions, inputs or outputs that the master has not.
    """
    wanted = Wanted(generations=(generation,), is_elsewhere=is_elsewhere)
    table = plan_builds(version, wanted, devices, find_builder, refusal)
    # A class of nodes is the device and its driver where one is here; for others only its
    # generation is known.
    local = (d for d in devices.values() if d.generation == str(generation) and not is_elsewhere)
    facts = next(local, None)
    return BuildPlan(
        model=version.name,
        version=version.version,
        node_class=NodeClass.from_facts(facts) if facts else NodeClass(generation=str(generation)),
        facts=facts,
        compiler=compiler,
        proof_code=proof_code(),
        planned=tuple(
            PlannedKey(
                key=key,
                # Only TensorRT compiles for a device that is not there; what it tunes is for one.
                is_anywhere=facts is None
                or (
                    key.kind is EngineKind.TENSORRT
                    and not find_builder(key.kind).is_device_bound(generation)
                ),
            )
            for key in table.planned
        ),
        skipped=tuple(
            SkippedKey(kind=s.kind, precision=s.precision, reason=s.reason) for s in table.skipped
        ),
        created_at=timestamp(utc_now()),
    )


def chosen(table: BuildTable, wanted: Wanted, registry: Registry) -> BuildTable:
    """The keys of a table that are wanted; what is left out for a failure is in `skipped`.

    Args:
        table: all that this machine could build.
        wanted: keys, or only what did not fail in its last attempt; by default all.
        registry: has the records of earlier attempts.

    Raises:
        NotFoundError: none of the wanted keys is planned on this machine.
    """
    if wanted.keys:
        return _only(table, wanted.keys)
    if not wanted.is_untried:
        return table
    reasons = {key.digest(): _last_failure(key, registry) for key in table.planned}
    return replace(
        table,
        planned=tuple(key for key in table.planned if not reasons[key.digest()]),
        skipped=(
            *table.skipped,
            *(
                SkippedBuild(
                    generation=key.generation,
                    kind=key.kind,
                    precision=key.precision,
                    reason=f"failed when it was tried last: {reason}",
                )
                for key in table.planned
                if (reason := reasons[key.digest()])
            ),
        ),
    )


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
        *(f"{what} {s.kind:<12} {s.precision} skipped: {s.reason}" for s in plan.skipped),
    ]


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


def _only(table: BuildTable, keys: Sequence[str]) -> BuildTable:
    planned = tuple(key for key in table.planned if key.digest() in keys)
    if not planned:
        raise NotFoundError(
            f"key {keys[0][:12]} is not planned on this machine; it may be of another toolchain, "
            "device or recipe. See what is: python -m compiler_worker plan MODEL"
        )
    for missing in set(keys) - {key.digest() for key in planned}:
        logger.warning("key %s is not planned on this machine, and is left out", missing)
    return BuildTable(planned=planned)


def _last_failure(key: BuildKey, registry: Registry) -> str:
    records = registry.build_records(key.digest())
    if not records or records[-1].outcome.is_good:
        return ""
    return records[-1].reason or "without a reason"
