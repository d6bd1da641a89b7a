"""The p99 that `smelt plan` simulates, beside that of a fleet under the same load.

    SMELT_HOME=FOLDER python -m tests.benchmarks.plan_against_fleet [--port 8001] [--loads 0.3]

FOLDER is that of a fleet which serves the demo's model: `make run`, until nothing is left to be
built. Requests are single texts of --length ids, sent at random times (Poisson), whether earlier
ones are answered or not. Each load is a share of what callers that wait for their answers get.

The plan is made twice: from the engine's timings by its proof, and from what its runs took under
this very load by the server's own statistics (`ModelStatistics`): this tells a wrong simulation
from a machine that others use too. What a lone request takes beside its run is the overhead.
"""

import argparse
import asyncio
import time
from statistics import median

import grpc
import numpy as np

from services.cli.planning.curves import Curve, MeasuredSide, measured_curves
from services.cli.planning.plan_profile import ModelDemand
from services.cli.planning.queue_simulation import ReplicaQueue
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.pb import open_inference_v2_pb2 as inference

MODEL = "all-minilm-l6-v2"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
STATISTICS = "/inference.GRPCInferenceService/ModelStatistics"
NUM_LONE = 200
NUM_CALLERS = 16
REPORTED_WITHIN_S = 3.0
TABLE = """\
| load | requests/s | rows a run | fleet: p50, p99 ms | plan by the proof: p50, p99 \
| plan by the runs then: p50, p99 | fleet's p99 / the latter |
|---:|---:|---:|---:|---:|---:|---:|"""


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

    async def most_per_s(self, seconds: float) -> float:
        """Requests per second of so many callers that each wait for their answer."""
        until_s = time.perf_counter() + seconds

        async def call() -> int:
            num = 0
            while time.perf_counter() < until_s:
                await self.seconds()
                num += 1
            return num

        return sum(await asyncio.gather(*(call() for _ in range(NUM_CALLERS)))) / seconds

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


class Runs:
    """What the server's runs took, since they were looked at before.

    Attributes:
        mean_rows: of a run.
    """

    def __init__(self, channel: grpc.aio.Channel, length: int) -> None:
        """Nothing is looked at yet; each row of a run has `length` ids."""
        self.mean_rows = 0.0
        self._statistics = channel.unary_unary(
            STATISTICS, response_deserializer=inference.ModelStatisticsResponse.FromString
        )
        self._length = length
        self._before: dict[int, tuple[int, int]] = {}

    async def curve(self) -> Curve:
        """Their seconds by size."""
        now = await self._totals()
        # Replicas report every few seconds.
        while (later := await self._totals()) != now or now == self._before:
            now = later
        new = {rows: np.subtract(now[rows], self._before.get(rows, (0, 0))) for rows in now}
        self._before = now
        ran = {rows: (int(num), float(ns)) for rows, (num, ns) in new.items() if num}
        self.mean_rows = sum(rows * num for rows, (num, _) in ran.items()) / sum(
            num for num, _ in ran.values()
        )
        points = ((rows * self._length, ns / num / 1e9) for rows, (num, ns) in ran.items())
        curve = Curve.through("runs", points)
        assert curve, "no run since"
        return curve

    async def _totals(self) -> dict[int, tuple[int, int]]:
        """Runs and their nanoseconds by rows, a while from now."""
        await asyncio.sleep(REPORTED_WITHIN_S)
        request = inference.ModelStatisticsRequest(name=MODEL)
        (stats,) = (await self._statistics(request.SerializeToString())).model_stats
        return {
            b.batch_size: (b.compute_infer.count, b.compute_infer.ns) for b in stats.batch_stats
        }


async def measure(arguments: argparse.Namespace) -> None:
    """Print a line for each load."""
    registry = open_registry(CliSettings())
    version = registry.model_version(MODEL)
    ((generation, sides),) = measured_curves(registry, version).items()
    proven = next(
        sides[side] for side in (MeasuredSide.ENGINE, MeasuredSide.FALLBACK) if side in sides
    )
    sizes = {"sequence": {arguments.length: 1.0}}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{arguments.port}") as channel:
        client = Client(channel, request_of(arguments.length))
        runs = Runs(channel, arguments.length)
        await client.lone_s()
        await runs.curve()
        lone_s = await client.lone_s()
        overhead_s = lone_s - (await runs.curve()).seconds[0]
        most = await client.most_per_s(arguments.seconds / 4)
        await runs.curve()
        print(
            f"{generation} {proven.name}: lone {lone_s * 1000:.2f} ms, "
            f"{overhead_s * 1000:.2f} of it overhead; a run by the proof "
            f"{proven.run_s(arguments.length) * 1000:.2f} ms; at most {most:.0f} requests/s"
        )
        print(TABLE)
        for load in arguments.loads:
            rate = load * most
            found = await client.latencies_s(rate, round(rate * arguments.seconds))
            demand = ModelDemand(
                requests_per_s=1, p99_ms=1e6, overhead_ms=overhead_s * 1000, sizes=sizes
            )
            then = await runs.curve()
            plans = [
                ReplicaQueue(version, demand, curve).simulated(rate) for curve in (proven, then)
            ]
            fleet = [float(np.quantile(found, q)) * 1000 for q in (0.5, 0.99)]
            by_proof, by_runs = (
                [1000 * (each + overhead_s) for each in (plan.p50_s, plan.p99_s)] for plan in plans
            )
            cells = (load, f"{rate:.0f}", f"{runs.mean_rows:.1f}", words(fleet), words(by_proof))
            ratio = f"{fleet[1] / by_runs[1]:.2f}"
            print("|", *(f"{each} |" for each in (*cells, words(by_runs), ratio)), flush=True)


def words(milliseconds: list[float]) -> str:
    """`12.3, 45.6`."""
    return ", ".join(f"{each:.1f}" for each in milliseconds)


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
