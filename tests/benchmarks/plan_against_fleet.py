"""The p99 that `smelt plan` simulates, beside that of a fleet under the same load.

    SMELT_HOME=FOLDER python -m tests.benchmarks.plan_against_fleet [--port 8001] [--loads 0.3]

FOLDER is that of a fleet which serves the demo's model: `make run`, until nothing is left to be
built; on a GPU `tests.benchmarks.gpu.plan_on_gpu` starts one. Requests are single texts of --length
ids, or of as many as the model takes, sent at random times (Poisson), whether earlier ones are
answered or not, by --clients processes: one alone is a queue too. Each load is a share of what
callers that wait for their answers get.

The plan is made twice: from the engine's timings by its proof, and from what its batches took under
this very load by the server's own statistics (`ModelStatistics`): this tells a wrong simulation
from a machine that others use too. What a lone request takes beside its batch is the overhead; lone
ones come at random times as well, as processors that slept answer later.
"""

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import InferenceServerClient

from services.cli.planning.curves import Curve, MeasuredSide, measured_curves
from services.cli.planning.device_simulation import Part, simulated
from services.cli.planning.plan_profile import ModelDemand
from services.cli.planning.queue_simulation import ReplicaQueue
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.pb import open_inference_v2_pb2 as inference

_MODEL = "all-minilm-l6-v2"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
NUM_LONE = 200
LONE_PAUSE_S = 0.02
NUM_CALLERS = 16
REPORTED_WITHIN_S = 3.0
TABLE = """\
| load | requests/s | rows a run | fleet: p50, p99 ms | plan by the proof: p50, p99 \
| plan by the runs then: p50, p99 | fleet's p99 / the latter |
|---:|---:|---:|---:|---:|---:|---:|"""


def request_of(model: str, length: int) -> bytes:
    """One text of so many ids, as gRPC sends it."""
    message = inference.ModelInferRequest(model_name=model)
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

    async def lone_s(self, num: int) -> list[float]:
        """Of requests that each come a random while after the answer before."""
        found = []
        for pause_s in np.random.default_rng(2).exponential(LONE_PAUSE_S, num).tolist():
            await asyncio.sleep(pause_s)
            found.append(await self.seconds())
        return found

    async def most_per_s(self, seconds: float, num_callers: int) -> float:
        """Requests per second of so many callers that each wait for their answer."""
        until_s = time.perf_counter() + seconds

        async def call() -> int:
            num = 0
            while time.perf_counter() < until_s:
                await self.seconds()
                num += 1
            return num

        return sum(await asyncio.gather(*(call() for _ in range(num_callers)))) / seconds

    async def latencies_s(self, rate: float, num: int, seed: int) -> list[float]:
        """Of so many requests that come at so many per second."""
        random = np.random.default_rng(seed)
        due_s = time.perf_counter()
        tasks = []
        for pause_s in random.exponential(1 / rate, num).tolist():
            due_s += pause_s
            await asyncio.sleep(max(due_s - time.perf_counter(), 0))
            tasks.append(asyncio.create_task(self.seconds()))
        return await asyncio.gather(*tasks)


class Clients:
    """Processes with a client each, whose random requests are together as random as one's."""

    def __init__(self, num: int, port: int, body: bytes) -> None:
        """Start them."""
        self._num = num
        self._asked = (port, body)
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(num, mp_context=context)
        self._each([(Client.lone_s, NUM_LONE // 10)] * num)

    def lone_s(self) -> float:
        """The median of requests that wait for nothing."""
        return median(*self._each([(Client.lone_s, NUM_LONE)]))

    def most_per_s(self, seconds: float) -> float:
        """Requests per second of callers that each wait for their answer."""
        return sum(self._each([(Client.most_per_s, seconds, NUM_CALLERS // self._num)] * self._num))

    def latencies_s(self, rate: float, seconds: float) -> list[float]:
        """Of requests that come at so many per second, for so long."""
        rate /= self._num
        num = round(rate * seconds)
        found = self._each([(Client.latencies_s, rate, num, seed) for seed in range(self._num)])
        return [each for latencies in found for each in latencies]

    def close(self) -> None:
        """End them."""
        self._pool.shutdown()

    def _each(self, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        begun = [self._pool.submit(asked, *self._asked, *task) for task in tasks]
        return [each.result() for each in begun]


def asked(port: int, body: bytes, method: Callable[..., Any], *arguments: float) -> Any:
    """What a method of a client returns, in this process."""

    async def ask() -> Any:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            client = Client(channel, body)
            await client.seconds()
            return await method(client, *arguments)

    return asyncio.run(ask())


class Runs:
    """What the server's batches took, since they were looked at before.

    Attributes:
        mean_rows: of a batch.
    """

    def __init__(self, port: int, model: str, row_elements: int) -> None:
        """Nothing is looked at yet.

        Args:
            port: of the gateway.
            model: that is asked.
            row_elements: what a row counts in the engine's timings.
        """
        self.mean_rows = 0.0
        self._client = InferenceServerClient(f"127.0.0.1:{port}")
        self._model = model
        self._row_elements = row_elements
        self._before: dict[int, tuple[int, int]] = {}

    def curve(self) -> Curve:
        """Their seconds by size: joining, running and splitting, one batch after the other."""
        now = self._totals()
        # Replicas report every few seconds.
        while (later := self._totals()) != now or now == self._before:
            now = later
        new = {rows: np.subtract(now[rows], self._before.get(rows, (0, 0))) for rows in now}
        self._before = now
        ran = {rows: (int(num), float(ns)) for rows, (num, ns) in new.items() if num}
        self.mean_rows = sum(rows * num for rows, (num, _) in ran.items()) / sum(
            num for num, _ in ran.values()
        )
        points = ((rows * self._row_elements, ns / num / 1e9) for rows, (num, ns) in ran.items())
        curve = Curve.through("runs", points)
        assert curve, "no run since"
        return curve

    def _totals(self) -> dict[int, tuple[int, int]]:
        """Batches and their nanoseconds by rows, a while from now."""
        time.sleep(REPORTED_WITHIN_S)
        (stats,) = self._client.get_inference_statistics(self._model).model_stats
        found = {}
        for each in stats.batch_stats:
            parts = (each.compute_input, each.compute_infer, each.compute_output)
            found[each.batch_size] = (each.compute_infer.count, sum(part.ns for part in parts))
        return found


def measure(arguments: argparse.Namespace) -> None:
    """Print a line for each load."""
    registry = open_registry(CliSettings())
    version = registry.model_version(arguments.model)
    ((generation, sides),) = measured_curves(registry, version).items()
    proven = next(
        sides[side] for side in (MeasuredSide.ENGINE, MeasuredSide.FALLBACK) if side in sides
    )
    dim = version.master.inputs[0].shape[1]
    if isinstance(dim, int):
        length, row_elements, sizes = dim, 1, {}
    else:
        length = row_elements = arguments.length
        sizes = {dim: {length: 1.0}}
    runs = Runs(arguments.port, version.name, row_elements)
    clients = Clients(arguments.clients, arguments.port, request_of(version.name, length))
    runs.curve()
    lone_s = clients.lone_s()
    overhead_s = lone_s - runs.curve().seconds[0]
    most = clients.most_per_s(arguments.seconds / 4)
    runs.curve()
    print(
        f"{generation} {proven.name}: lone {lone_s * 1000:.2f} ms, "
        f"{overhead_s * 1000:.2f} of it overhead; a run by the proof "
        f"{proven.run_s(row_elements) * 1000:.2f} ms; at most {most:.0f} requests/s"
    )
    print(TABLE)
    demand = ModelDemand(requests_per_s=1, p99_ms=1e6, overhead_ms=overhead_s * 1000, sizes=sizes)
    for load in arguments.loads:
        rate = load * most
        found = clients.latencies_s(rate, arguments.seconds)
        then = runs.curve()
        queues = [ReplicaQueue(version, demand, curve) for curve in (proven, then)]
        plans = [simulated([Part(queue, rate)])[0] for queue in queues]
        fleet = [float(np.quantile(found, q)) * 1000 for q in (0.5, 0.99)]
        by_proof, by_runs = (
            [1000 * (each + overhead_s) for each in (plan.p50_s, plan.p99_s)] for plan in plans
        )
        cells = (load, f"{rate:.0f}", f"{runs.mean_rows:.1f}", words(fleet), words(by_proof))
        ratio = f"{fleet[1] / by_runs[1]:.2f}"
        print("|", *(f"{each} |" for each in (*cells, words(by_runs), ratio)), flush=True)
    clients.close()


def words(milliseconds: list[float]) -> str:
    """`12.3, 45.6`."""
    return ", ".join(f"{each:.1f}" for each in milliseconds)


def main(*words: str) -> None:
    """Read the options, of the command where none are given, and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=_MODEL)
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--loads", type=float, nargs="*", default=[0.3, 0.5, 0.7])
    measure(parser.parse_args(words or None))


if __name__ == "__main__":
    main()
