"""How long `smelt plan` computes for a fleet of 10,000 nodes and more, on one core.

    python -m tests.benchmarks.plan_time [--models 10] [--lengths 1] [--rate 1e6]

Made curves of three generations, each with engine, fallback and eager; a rate for each hour.
"""

import argparse
import time

from services.cli.planning.curves import Curve, MeasuredSide
from services.cli.planning.plan import sizing_document
from services.cli.planning.plan_profile import HOURS, PlanProfile
from services.cli.planning.replica_memory import ReplicaMemory
from services.contracts.model.recipe import Bucket, DimRange
from tests.unit.services.cli.planning.planned_model import planned_model

_SPEEDS = {"cuda-sm80": 1.0, "cuda-sm89": 1.4, "cuda-sm90": 3.0}
_SIDES = {MeasuredSide.ENGINE: 1.0, MeasuredSide.FALLBACK: 1.8, MeasuredSide.EAGER: 2.4}
_MOST_LENGTH = 64


def main() -> None:
    """Plan, and print the time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--lengths", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1e6, help="of a model's quietest hour")
    options = parser.parse_args()
    rows = DimRange(min=1, opt=8, max=32)
    length = DimRange(min=1, opt=8, max=_MOST_LENGTH)
    version = planned_model(Bucket(dims={"batch": rows, "length": length}))
    names = [f"m{number}" for number in range(options.models)]
    sizes = {_MOST_LENGTH >> place: 1.0 for place in range(options.lengths)}
    demands = {
        name: {
            "requests_per_s": [
                options.rate * (1 + (hour + number) % HOURS) for hour in range(HOURS)
            ],
            "p99_ms": 60,
            "sizes": {"length": sizes},
        }
        for number, name in enumerate(names)
    }
    offers = {generation: {"price_per_h": speed} for generation, speed in _SPEEDS.items()}
    profile = PlanProfile.model_validate({"models": demands, "devices": offers})
    curves = {
        (name, generation): {
            side: Curve(
                name=side,
                elements=(64, 2048),
                # No two pairs alike: nothing is known from another.
                seconds=(0.002 * factor, 0.02 * factor),
            )
            for side, slowness in _SIDES.items()
            for factor in [slowness / speed * (1 + number / 100)]
        }
        for number, name in enumerate(names)
        for generation, speed in _SPEEDS.items()
    }
    memory = ReplicaMemory(share=0.1, needed_gib=8.0, memory_gib=100)
    memories = dict.fromkeys(curves, memory)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    document = sizing_document(profile, dict.fromkeys(names, version), curves, memories)
    nodes = max(sum(hour["nodes"].values()) for hour in document["by_hour"])
    took_s, used_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    print(f"{nodes} nodes in the largest hour: {took_s:.1f} s, {used_s:.1f} s of a core")


if __name__ == "__main__":
    main()
