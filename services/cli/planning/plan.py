"""`smelt plan`: how many devices of which generation, what they cost, and what engines save."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from services.cli.output.show import show
from services.cli.planning.curves import Curve, MeasuredSide, measured_curves
from services.cli.planning.fleet_size import FleetSize, cheapest_fleet
from services.cli.planning.measured_version import measured_version
from services.cli.planning.plan_profile import HOURS, PlanProfile
from services.cli.planning.plan_text import plan_text
from services.cli.planning.queue_simulation import ReplicaQueue
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.kinds import Precision
from services.contracts.model.manifest import ModelVersion

Curves = Mapping[tuple[str, str], Mapping[MeasuredSide, Curve]]
Queues = Mapping[tuple[str, str], ReplicaQueue]


def run_plan(
    settings: CliSettings,
    path: Path,
    what_if: Sequence[str] = (),
    *,
    as_json: bool,
    is_wide: bool = False,
) -> None:
    """Print the plan for a profile.

    Args:
        settings: of the command line.
        path: of the profile.
        what_if: changes of it.
        as_json: print one document in place of tables.
        is_wide: print all columns.

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
    if precision:
        _refuse_without_engines(precision, list(versions), curves)
    document = sizing_document(profile, versions, curves) | {"what_if": list(what_if)}
    document |= {"versions": {name: each.version for name, each in versions.items()}}
    lines = (words for _, words in taken if words)
    show(document, chain(lines, plan_text(document)), as_json=as_json, is_wide=is_wide)


def _refuse_without_engines(precision: Precision, names: list[str], curves: Curves) -> None:
    engines = {name for (name, _), sides in curves.items() if MeasuredSide.ENGINE in sides}
    if without := [name for name in names if name not in engines]:
        raise InvalidRequestError(
            f"--what-if precision={precision}: no {precision} engine of {', '.join(without)} is "
            "proven on an offered device and chosen there; smelt why MODEL says why"
        )


def sizing_document(
    profile: PlanProfile, versions: Mapping[str, ModelVersion], curves: Curves
) -> dict[str, Any]:
    """The plan as plain data.

    Args:
        profile: what is asked for.
        versions: of the models.
        curves: by model and generation.

    Raises:
        InvalidRequestError: a model was measured nowhere, or the profile cannot be kept.
    """
    if unknown := [name for name in versions if name not in {pair[0] for pair in curves}]:
        raise InvalidRequestError(
            f"no engine of {', '.join(unknown)} was proven and timed on any of "
            f"{', '.join(profile.devices)}: a fleet with such a node builds and times them"
        )
    served = _queues(profile, versions, curves, (MeasuredSide.ENGINE, MeasuredSide.FALLBACK))
    capacities = _capacities(profile, served)
    size = _cheapest(profile, capacities)
    by_hour = [_cheapest(profile, capacities, hour) for hour in _hours(profile)]
    without = {
        "the fallback alone": (MeasuredSide.FALLBACK, MeasuredSide.EAGER),
        "eager PyTorch alone": (MeasuredSide.EAGER,),
    }
    return {
        "currency_per_day": 24 * size.price_per_h,
        "currency_per_day_by_hour": sum(each.price_per_h for each in by_hour) * 24 / len(by_hour),
        "devices": [_device(profile, size, generation) for generation in profile.devices],
        "models": [
            _model(profile, size, pair, queue, capacities[pair], curves[pair])
            for pair, queue in served.items()
        ],
        "by_hour": [_hour(each) for each in by_hour],
        "without_engines": [
            {"computes": words} | _fleet_of(profile, _queues(profile, versions, curves, sides))
            for words, sides in without.items()
        ],
        "not_measured": [
            {"model": name, "generation": generation}
            for name in versions
            for generation in profile.devices
            if (name, generation) not in curves
        ],
    }


def _queues(
    profile: PlanProfile,
    versions: Mapping[str, ModelVersion],
    curves: Curves,
    sides: Sequence[MeasuredSide],
) -> dict[tuple[str, str], ReplicaQueue]:
    """A queue for each pair of model and generation, by the first side that was timed there."""
    return {
        (name, generation): ReplicaQueue(versions[name], profile.models[name], curve)
        for (name, generation), found in curves.items()
        if (curve := next((found[side] for side in sides if side in found), None))
    }


def _capacities(profile: PlanProfile, queues: Queues) -> dict[tuple[str, str], float]:
    """What a device does of each pair; raises InvalidRequestError for a p99 that none keeps."""
    found = {pair: queue.capacity() for pair, queue in queues.items()}
    for name, demand in profile.models.items():
        mine = {g: queue for (model, g), queue in queues.items() if model == name}
        if any(found[name, g] for g in mine):
            continue
        if not mine:
            raise InvalidRequestError(f"nothing of {name} was timed so on an offered device")
        least, where = min((queue.least_p99_ms(), g) for g, queue in mine.items())
        raise InvalidRequestError(
            f"models.{name}.p99_ms: got {demand.p99_ms:g}, and the smallest that can be kept is "
            f"{least:g}, on {where}: ask for that or more, offer another generation, or have a "
            "faster engine built there"
        )
    return found


def _cheapest(
    profile: PlanProfile, capacities: Mapping[tuple[str, str], float], hour: int | None = None
) -> FleetSize:
    """Nodes for one hour, or those that are enough in all of them."""
    rates = {
        name: demand.rates if hour is None else (demand.rates[hour],)
        for name, demand in profile.models.items()
    }
    return cheapest_fleet(rates, capacities, profile)


def _hours(profile: PlanProfile) -> range:
    """The hours that differ: all, or the first where none does."""
    rates = [set(demand.rates) for demand in profile.models.values()]
    return range(HOURS if any(len(each) > 1 for each in rates) else 1)


def _fleet_of(profile: PlanProfile, queues: Queues) -> dict[str, Any]:
    """Devices and price with these queues; none where they cannot keep the profile."""
    try:
        size = _cheapest(profile, _capacities(profile, queues))
    except InvalidRequestError as error:
        return {"num_devices": None, "currency_per_day": None, "reason": str(error)}
    num = sum(_num_devices(profile, size, generation) for generation in profile.devices)
    return {"num_devices": num, "currency_per_day": 24 * size.price_per_h, "reason": ""}


def _num_devices(profile: PlanProfile, size: FleetSize, generation: str) -> int:
    return size.nodes[generation] * profile.devices[generation].per_node


def _device(profile: PlanProfile, size: FleetSize, generation: str) -> dict[str, Any]:
    num = _num_devices(profile, size, generation)
    return {
        "generation": generation,
        "nodes": size.nodes[generation],
        "num_devices": num,
        "load": _load(profile, size, generation),
        "currency_per_day": 24 * num * profile.devices[generation].price_per_h,
    }


def _load(profile: PlanProfile, size: FleetSize, generation: str) -> float:
    """Of what the devices of a generation can do within the p99, the part that is asked for."""
    used = sum(value for pair, value in size.used.items() if pair[1] == generation)
    num = _num_devices(profile, size, generation)
    return used / num if num else 0.0


def _hour(size: FleetSize) -> dict[str, Any]:
    """Nodes of one hour, and what each model takes of devices."""
    used = [
        {"model": name, "generation": generation, "devices": num}
        for (name, generation), num in size.used.items()
    ]
    return {"nodes": dict(size.nodes), "currency_per_h": size.price_per_h, "devices": used}


def _model(
    profile: PlanProfile,
    size: FleetSize,
    pair: tuple[str, str],
    queue: ReplicaQueue,
    capacity: float,
    sides: Mapping[MeasuredSide, Curve],
) -> dict[str, Any]:
    """One model on one generation: what a device does, and what its requests will see."""
    name, generation = pair
    used = size.used.get(pair, 0.0)
    found = queue.simulated(capacity * _load(profile, size, generation)) if used else None
    overhead_s = profile.models[name].overhead_ms / 1000
    return {
        "model": name,
        "generation": generation,
        "computes": next(
            sides[s].name for s in (MeasuredSide.ENGINE, MeasuredSide.FALLBACK) if s in sides
        ),
        "requests_per_s_of_a_device": capacity,
        "devices": used,
        "p99_s": found and found.p99_s + overhead_s,
        "p99_wanted_s": profile.models[name].p99_ms / 1000,
        "busy": found and found.busy,
        "rows_of_a_batch": found and found.mean_rows,
    }
