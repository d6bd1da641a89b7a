"""The p99 that `smelt plan` simulates, beside that of a fleet under the same load.

    SMELT_HOME=FOLDER python -m tests.benchmarks.plan_against_fleet [--port 8001] [--loads 0.3]

FOLDER is that of a fleet which serves the demo's model: `make run`, until nothing is left to be
built. Requests are single texts of --length ids, sent at random times (Poisson), whether earlier
ones are answered or not. What a lone request takes beside the engine's own time is the overhead.
Each load is a share of what the simulation says one device can do at all.
"""

import argparse
import asyncio
import time
from statistics import median

import grpc
import numpy as np

from services.cli.planning.curves import MeasuredSide, measured_curves
from services.cli.planning.plan_profile import ModelDemand
from services.cli.planning.queue_simulation import ReplicaQueue
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.pb import open_inference_v2_pb2 as inference

MODEL = "all-minilm-l6-v2"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
NUM_LONE = 200


def request_of(length: int) -> bytes:
    """One text of so many ids, as gRPC sends it."""
    message = inference.ModelInferRequest(model_name=MODEL)
    ids = np.random.default_rng(0).integers(1000, 20000, (1, length))
    for name, array in (("input_ids", ids), ("attention_mask", np.ones_like(ids))):
        message.inputs.add(name=name, datatype="INT64", shape=array.shape)
        message.raw_input_contents.append(array.astype(np.int64).tobytes())
    return message.SerializeToString()


class Client:
    """Sends one and the same request; what it took is counted."""

    def __init__(self, channel: grpc.aio.Channel, body: bytes) -> None:
        """Send `body` over a channel."""
        self._call = channel.unary_unary(METHOD)
        self._body = body

    async def seconds(self) -> float:
        """Of one request."""
        began_s = time.perf_counter()
        await self._call(self._body)
        return time.perf_counter() - began_s

    async def lone_s(self) -> float:
        """The median of requests that wait for nothing."""
        return median([await self.seconds() for _ in range(NUM_LONE)])

    async def latencies_s(self, rate: float, num: int) -> list[float]:
        """Of so many requests that come at so many per second."""
        random = np.random.default_rng(1)
        due_s = time.perf_counter()
        tasks = []
        for pause_s in random.exponential(1 / rate, num).tolist():
            due_s += pause_s
            await asyncio.sleep(max(due_s - time.perf_counter(), 0))
            tasks.append(asyncio.create_task(self.seconds()))
        return await asyncio.gather(*tasks)


async def measure(arguments: argparse.Namespace) -> None:
    """Print a line for each load."""
    registry = open_registry(CliSettings())
    version = registry.model_version(MODEL)
    ((generation, sides),) = measured_curves(registry, version).items()
    measured = next(
        sides[side] for side in (MeasuredSide.ENGINE, MeasuredSide.FALLBACK) if side in sides
    )
    sizes = {"sequence": {arguments.length: 1.0}}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{arguments.port}") as channel:
        client = Client(channel, request_of(arguments.length))
        await client.lone_s()
        lone_s = await client.lone_s()
        overhead_ms = max(lone_s - measured.run_s(arguments.length), 0) * 1000
        demand = ModelDemand(requests_per_s=1, p99_ms=1e6, overhead_ms=overhead_ms, sizes=sizes)
        queue = ReplicaQueue(version, demand, measured)
        most = queue.capacity()
        print(
            f"{generation} {measured.name}: lone {lone_s * 1000:.2f} ms, overhead "
            f"{overhead_ms:.2f} ms, at most {most:.0f} requests/s"
        )
        print("| load | requests/s | p50 ms: plan | fleet | p99 ms: plan | fleet | fleet / plan |")
        print("|---:|---:|---:|---:|---:|---:|---:|")
        for load in arguments.loads:
            rate = load * most
            plan = queue.simulated(rate)
            found = await client.latencies_s(rate, round(rate * arguments.seconds))
            p50_ms, p99_ms = (float(np.quantile(found, q)) * 1000 for q in (0.5, 0.99))
            wanted = [1000 * each + overhead_ms for each in (plan.p50_s, plan.p99_s)]
            print(
                f"| {load} | {rate:.0f} | {wanted[0]:.1f} | {p50_ms:.1f} | {wanted[1]:.1f} "
                f"| {p99_ms:.1f} | {p99_ms / wanted[1]:.2f} |",
                flush=True,
            )


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--loads", type=float, nargs="*", default=[0.3, 0.5, 0.7])
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
