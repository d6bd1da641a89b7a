"""A fleet as plain data: devices, models, what shares a device, and hours."""

from collections.abc import Iterator, Mapping
from typing import Any

from services.cli.planning.device_use import DeviceUse
from services.cli.planning.fleet_plan import FleetPlan
from services.cli.planning.placement import Pair, PlacedDevice, Placement, Placer
from services.cli.planning.plan_profile import PlanProfile


def planned_devices(profile: PlanProfile, plan: FleetPlan, placer: Placer) -> list[dict[str, Any]]:
    """Nodes and devices of each generation.

    `load` is, in the hour that has most, the part that is asked for of what all devices can do
    within the p99; `memory`, of a GPU, what replicas are given of the fullest.

    Args:
        profile: what is asked for.
        plan: of all hours.
        placer: of the plan.
    """
    found = []
    for generation, offer in profile.devices.items():
        num = plan.nodes[generation] * offer.per_node
        busy = [sum(v for p, v in used.items() if p[1] == generation) for used in plan.used]
        placed = [device for hour in plan.hours for device in hour[generation]]
        found.append(
            {
                "generation": generation,
                "nodes": plan.nodes[generation],
                "num_devices": num,
                "load": max(busy) / num if num else 0.0,
                "num_shared": max(
                    sum(len(device.hosted) > 1 for device in hour[generation])
                    for hour in plan.hours
                ),
                "memory": max(map(placer.memory, placed), default=0.0),
                "currency_per_day": 24 * num * offer.price_per_h,
            }
        )
    return found


def planned_models(
    profile: PlanProfile, plan: FleetPlan, placer: Placer, uses: Mapping[Pair, DeviceUse]
) -> list[dict[str, Any]]:
    """Each model on each generation: what a device does, and what its requests will see.

    Args:
        profile: what is asked for.
        plan: of all hours; a model's figures are of the hour in which it takes most.
        placer: of the plan.
        uses: what devices do.
    """
    return [_model(profile, plan, placer, pair, use) for pair, use in uses.items()]


def shared_devices(plan: FleetPlan, placer: Placer) -> list[dict[str, Any]]:
    """Devices of several models, in the hour that takes most devices."""
    hour = max(plan.hours, key=lambda each: sum(d.count for _, d in _placed(each)))
    return [
        {
            "generation": generation,
            "load": device.load,
            "memory": placer.memory(device),
            "models": [
                {"model": each.pair[0], "part": each.part, "replicas": each.num_replicas}
                for each in device.hosted
            ],
        }
        for generation, device in _placed(hour)
        if len(device.hosted) > 1
    ]


def planned_hour(plan: FleetPlan) -> dict[str, Any]:
    """Nodes of one hour, and what each model takes of devices."""
    (hour,) = plan.hours
    used = [
        {
            "model": pair[0],
            "generation": pair[1],
            "devices": busy,
            "replicas": _num_replicas(hour, pair),
        }
        for pair, busy in plan.used[0].items()
    ]
    return {"nodes": dict(plan.nodes), "currency_per_h": plan.price_per_h, "devices": used}


def _model(
    profile: PlanProfile, plan: FleetPlan, placer: Placer, pair: Pair, use: DeviceUse
) -> dict[str, Any]:
    name, generation = pair
    hours = zip(plan.used, plan.hours, strict=True)
    used, hour = max(hours, key=lambda each: each[0].get(pair, 0.0))
    on = [placer.simulated(d)[pair] for _, d in _placed(hour) if pair in {h.pair for h in d.hosted}]
    worst = max(on, key=lambda each: each.p99_s, default=None)
    overhead_s = profile.models[name].overhead_ms / 1000
    return {
        "model": name,
        "generation": generation,
        "computes": use.queue.curve.name,
        "is_wild": use.queue.curve.is_wild,
        "requests_per_s_of_a_device": use.capacity,
        "requests_per_s_of_a_replica": use.capacity / use.num_replicas,
        "devices": used.get(pair, 0.0),
        "replicas": max(_num_replicas(each, pair) for each in plan.hours),
        "replicas_of_a_device": use.num_replicas,
        "memory_gib": use.memory and use.memory.needed_gib,
        "gpu_share": use.share,
        "mean_s": worst and worst.mean_s + overhead_s,
        "p99_s": worst and worst.p99_s + overhead_s,
        "p99_wanted_s": profile.models[name].p99_ms / 1000,
        "busy": worst and worst.busy,
        "rows_of_a_batch": worst and worst.mean_rows,
    }


def _placed(hour: Placement) -> Iterator[tuple[str, PlacedDevice]]:
    return ((generation, device) for generation, devices in hour.items() for device in devices)


def _num_replicas(hour: Placement, pair: Pair) -> int:
    return sum(
        device.count * each.num_replicas
        for _, device in _placed(hour)
        for each in device.hosted
        if each.pair == pair
    )
