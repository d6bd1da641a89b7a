"""`smelt plan`: how many devices of which generation, what they cost, and what engines save."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from services.cli.output.show import show
from services.cli.planning.curves import Curve, MeasuredSide, measured_curves
from services.cli.planning.device_simulation import least_p99_ms
from services.cli.planning.device_use import DeviceUse, device_use
from services.cli.planning.fleet_plan import FleetPlanner
from services.cli.planning.measured_version import measured_version
from services.cli.planning.placement import Pair
from services.cli.planning.plan_document import (
    planned_devices,
    planned_hour,
    planned_models,
    shared_devices,
)
from services.cli.planning.plan_profile import HOURS, PlanProfile
from services.cli.planning.plan_text import plan_text
from services.cli.planning.queue_simulation import ReplicaQueue
from services.cli.planning.replica_memory import ReplicaMemory, replica_memory
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.kinds import Precision
from services.contracts.model.manifest import ModelVersion

Curves = Mapping[Pair, Mapping[MeasuredSide, Curve]]
Memories = Mapping[Pair, ReplicaMemory]


def run_plan(settings: CliSettings, path: Path, what_if: Sequence[str] = ()) -> None:
    """Print the plan for a profile.

    Args:
        settings: of the command line.
        path: of the profile.
        what_if: changes of it.

    Raises:
        InvalidRequestError: the profile is wrong, or cannot be kept, or no engine has the
            precision that a change names.
        NotFoundError: no such model.
    """
    profile, precision = PlanProfile.from_file(path).changed(list(what_if))
    registry = open_registry(settings)
    taken = [
        measured_version(registry, name, demand.version, profile.devices)
        for name, demand in profile.models.items()
    ]
    versions = {version.name: version for version, _ in taken}
    curves = {
        (name, generation): sides
        for name, version in versions.items()
        for generation, sides in measured_curves(registry, version, precision).items()
        if generation in profile.devices
    }
    memories = {
        (name, generation): memory
        for name, version in versions.items()
        for generation, memory in replica_memory(registry, version, profile.devices).items()
    }
    if precision:
        _refuse_without_engines(precision, list(versions), curves)
    document = sizing_document(profile, versions, curves, memories) | {"what_if": list(what_if)}
    document |= {"versions": {name: each.version for name, each in versions.items()}}
    lines = (words for _, words in taken if words)
    show(document, chain(lines, plan_text(document)))


def _refuse_without_engines(precision: Precision, names: list[str], curves: Curves) -> None:
    engines = {name for (name, _), sides in curves.items() if MeasuredSide.ENGINE in sides}
    if without := [name for name in names if name not in engines]:
        raise InvalidRequestError(
            f"--what-if precision={precision}: no {precision} engine of {', '.join(without)} is "
            "proven on an offered device and chosen there; smelt why MODEL says why"
        )


def sizing_document(
    profile: PlanProfile,
    versions: Mapping[str, ModelVersion],
    curves: Curves,
    memories: Memories,
) -> dict[str, Any]:
    """The plan as plain data.

    Args:
        profile: what is asked for.
        versions: of the models.
        curves: by model and generation.
        memories: that replicas need of GPUs, by both.

    Raises:
        InvalidRequestError: a model was measured nowhere, has room nowhere, or the profile cannot
            be kept.
    """
    too_large = {pair: each for pair, each in memories.items() if pair in curves and not each.fits}
    fitting = {pair: sides for pair, sides in curves.items() if pair not in too_large}
    _refuse_without_device(profile, list(versions), fitting, too_large)

    def uses(*sides: MeasuredSide) -> dict[Pair, DeviceUse]:
        return _uses(profile, versions, fitting, memories, sides)

    served = uses(MeasuredSide.ENGINE, MeasuredSide.FALLBACK)
    planner = FleetPlanner(profile, served)
    plan = planner.plan(range(HOURS))
    by_hour = [planner.plan([hour]) for hour in _hours(profile)]
    without = {
        "the fallback alone": (MeasuredSide.FALLBACK, MeasuredSide.EAGER),
        "eager PyTorch alone": (MeasuredSide.EAGER,),
    }
    return {
        "currency_per_day": HOURS * plan.price_per_h,
        "currency_per_day_by_hour": sum(e.price_per_h for e in by_hour) * HOURS / len(by_hour),
        "devices": planned_devices(profile, plan, planner.placer),
        "models": planned_models(profile, plan, planner.placer, served),
        "shared": shared_devices(plan, planner.placer),
        "by_hour": [planned_hour(each) for each in by_hour],
        "without_engines": [
            {"computes": words} | _fleet_of(profile, partial(uses, *sides))
            for words, sides in without.items()
        ],
        "not_measured": [
            {"model": name, "generation": generation}
            for name in versions
            for generation in profile.devices
            if (name, generation) not in curves
        ],
        "too_large": [
            {"model": name, "generation": generation, "reason": each.words()}
            for (name, generation), each in too_large.items()
        ],
    }


def _refuse_without_device(
    profile: PlanProfile, names: list[str], fitting: Curves, too_large: Memories
) -> None:
    found = {name for name, _ in fitting}
    if unknown := [name for name in names if name not in found | {n for n, _ in too_large}]:
        raise InvalidRequestError(
            f"no engine of {', '.join(unknown)} was proven and timed on any of "
            f"{', '.join(profile.devices)}: a fleet with such a node builds and times them"
        )
    for (name, generation), memory in too_large.items():
        if name not in found:
            raise InvalidRequestError(f"{name} does not fit on {generation}: {memory.words()}")


def _uses(
    profile: PlanProfile,
    versions: Mapping[str, ModelVersion],
    curves: Curves,
    memories: Memories,
    sides: Sequence[MeasuredSide],
) -> dict[Pair, DeviceUse]:
    """What devices do, each by the first side that was timed on it.

    Raises:
        InvalidRequestError: a model whose p99 none keeps.
    """
    queues = {
        (name, generation): ReplicaQueue(versions[name], profile.models[name], curve)
        for (name, generation), found in curves.items()
        if (curve := next((found[side] for side in sides if side in found), None))
    }
    uses = {pair: device_use(queue, memories.get(pair)) for pair, queue in queues.items()}
    for name, demand in profile.models.items():
        mine = {g: use for (model, g), use in uses.items() if model == name}
        if any(use.capacity for use in mine.values()):
            continue
        if not mine:
            raise InvalidRequestError(f"nothing of {name} was timed so on an offered device")
        least, where = min((least_p99_ms(use.queue), g) for g, use in mine.items())
        raise InvalidRequestError(
            f"models.{name}.p99_ms: got {demand.p99_ms:g}, and the smallest that can be kept is "
            f"{least:g}, on {where}: ask for that or more, offer another generation, or have a "
            "faster engine built there"
        )
    return uses


def _hours(profile: PlanProfile) -> range:
    """The hours that differ: all, or the first where none does."""
    rates = [set(demand.rates) for demand in profile.models.values()]
    return range(HOURS if any(len(each) > 1 for each in rates) else 1)


def _fleet_of(profile: PlanProfile, uses: Callable[[], dict[Pair, DeviceUse]]) -> dict[str, Any]:
    """Devices and price with what devices do then; none where they cannot keep the profile."""
    try:
        plan = FleetPlanner(profile, uses()).plan(range(HOURS))
    except InvalidRequestError as error:
        return {"num_devices": None, "currency_per_day": None, "reason": str(error)}
    num = sum(num * profile.devices[g].per_node for g, num in plan.nodes.items())
    return {"num_devices": num, "currency_per_day": HOURS * plan.price_per_h, "reason": ""}
