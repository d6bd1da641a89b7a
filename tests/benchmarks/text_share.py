"""What tokenising costs a replica: of its event loop's processor time.

    HF_HUB_OFFLINE=1 python -m tests.benchmarks.text_share [--seconds S]

The real MiniLM is added from a folder, built for ONNX Runtime in fp32 and loaded by a replica in
this process. Callers keep one request in flight each: tensors that were tokenised before, or text.
Both take turns. What a request costs the loop is the processor time of the loop's thread.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from tokenizers import Tokenizer

from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.cli.requests.infer import request_from_arrays
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from services.replica.replica import Replica
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.recorder import NullRecorder
from tests.benchmarks.joint_runs import print_machine
from tests.minilm_folder import MODEL_DIR, write_minilm_folder
from tests.quick_worker import quick_worker

SENTENCE = "the old harbour town met again in may"
# Words of a text, special tokens excluded.
LENGTHS = (8, 198)
CALLERS = (1, 32)
DIMS = {
    "batch": DimRange(min=1, opt=4, max=8),
    "sequence": DimRange(min=1, opt=16, max=256),
}
ROUNDS = 5


async def measure(seconds: float) -> None:
    """Print a line for each length, number of callers and way of asking."""
    with tempfile.TemporaryDirectory() as folder:
        settings = await asyncio.to_thread(_built, Path(folder))
        server = ReplicaServer(settings, NullRecorder())
        await server.start()
        print("| tokens | callers | sends | requests/s | loop us |\n|---|---|---|---:|---:|")
        for words in LENGTHS:
            bodies = {"tensors": _tensors(words), "text": _texts(words)}
            for callers in CALLERS:
                await _compared(server.replica, bodies, words + 2, callers, seconds)
        await server.stop(0)


def _built(folder: Path) -> ReplicaSettings:
    worker = quick_worker(folder)
    recipe = Recipe(
        kinds=(EngineKind.ONNXRUNTIME,),
        precisions=(Precision.FP32,),
        buckets=(Bucket(dims=DIMS),),
    )
    source = str(write_minilm_folder(folder / "minilm"))
    options = AddOptions(recipe=recipe)
    version = add_model(worker.registry, "minilm", source, options, Steps(is_quiet=True))
    build_model(version, Wanted(), worker)
    return ReplicaSettings(
        store_url=worker.settings.store_url,
        cache_dir=folder / "cache",
        model="minilm",
        socket_dir=folder,
        num_threads=1,
    )


async def _compared(
    replica: Replica, bodies: dict[str, bytes], tokens: int, callers: int, seconds: float
) -> None:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in bodies}
    for _ in range(ROUNDS):
        for name, body in bodies.items():
            found[name].append(await _round(replica, body, callers, seconds / ROUNDS))
    for name, rounds in found.items():
        rate, loop_us = (median(each) for each in zip(*rounds, strict=True))
        print(f"| {tokens} | {callers} | {name} | {rate:.0f} | {loop_us:.0f} |", flush=True)


async def _round(
    replica: Replica, body: bytes, callers: int, seconds: float
) -> tuple[float, float]:
    """Requests in a second, and the loop's microseconds of each."""
    await replica.infer(body)
    began_s = time.perf_counter()
    loop_s = time.thread_time()
    numbers = await asyncio.gather(
        *(_caller(replica, body, began_s + seconds) for _ in range(callers))
    )
    num = sum(numbers)
    return num / (time.perf_counter() - began_s), 1e6 * (time.thread_time() - loop_s) / num


async def _caller(replica: Replica, body: bytes, until_s: float) -> int:
    num = 0
    while time.perf_counter() < until_s:
        await replica.infer(body)
        num += 1
    return num


def _texts(words: int) -> bytes:
    array = np.array([[_text(words)]], dtype=np.object_)
    return _body({"text": array})


def _tensors(words: int) -> bytes:
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids: Sequence[int] = tokenizer.encode(_text(words)).ids
    shape = (1, len(ids))
    return _body(
        {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones(shape, np.int64),
            "token_type_ids": np.zeros(shape, np.int64),
        }
    )


def _text(words: int) -> str:
    return " ".join((SENTENCE.split() * words)[:words])


def _body(arrays: dict[str, Array]) -> bytes:
    return request_from_arrays("minilm", "", arrays).SerializeToString()


def main(arguments: list[str]) -> int:
    """Measure with the options that were given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args(arguments)
    print_machine()
    asyncio.run(measure(given.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
