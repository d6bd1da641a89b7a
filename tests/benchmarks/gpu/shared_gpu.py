"""A fleet on one GPU: models share it, a replica is killed, a version takes another one's place.

    python -m tests.benchmarks.gpu.shared_gpu [--callers 8] [--only kill|change]

Two models are added, which the GPU has room for; then, each under load with deadlines of 20 s, the
only replica of the first is killed with SIGKILL, and a third model, whose `gpu_share` leaves no
room for two of its replicas, gets a second version, which is taken back once it serves. With
`--only change` nothing but that third model is added, and nothing is built.
"""

import argparse
import json
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from tests.benchmarks.newcomers import PORT, answer, export, exported, smelt
from tests.integration.newcomers.exports import Inputs

_MODEL = "distilbert"
_DEADLINE_S = 20.0
_SERVED_WITHIN_S = 300.0
_LOOK_S = 0.1
# Under each load at least.
NUM_REQUESTS = 20_000


class Load:
    """Callers in threads, each with one request under way.

    Attributes:
        answered: how many requests were.
        failed: those that were not, by message.
        longest_s: that one took.
    """

    def __init__(self, name: str, inputs: Inputs, num_callers: int) -> None:
        """Begins at once."""
        self.answered = 0
        self.failed = Counter[str]()
        self.longest_s = 0.0
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(name, inputs)) for _ in range(num_callers)
        ]
        for thread in self._threads:
            thread.start()

    def _call(self, name: str, inputs: Inputs) -> None:
        client = InferenceServerClient(f"127.0.0.1:{PORT}")
        while not self._is_over.is_set():
            began_s = time.monotonic()
            try:
                answer(client, name, inputs, timeout_s=_DEADLINE_S)
                self.answered += 1
            except InferenceServerException as error:
                self.failed[str(error)[:100]] += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)

    def until(self, num_answered: int) -> None:
        """Wait until so many requests were answered."""
        while self.answered < num_answered:
            time.sleep(_LOOK_S)

    def end(self) -> str:
        """Stop; what became of the requests."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        found = f"{self.answered} answered, {self.failed.total()} failed"
        return f"{found}, the longest took {self.longest_s:.1f} s {dict(self.failed) or ''}"


@contextmanager
def load(name: str, inputs: Inputs, num_callers: int) -> Iterator[Load]:
    """Ask for as long as the block runs, and print what became of it."""
    asking = Load(name, inputs, num_callers)
    try:
        yield asking
    finally:
        print(f"{name}: {asking.end()}", flush=True)


def until_served(name: str, inputs: Inputs) -> float:
    """Wait for the first answer; the seconds that took."""
    began_s = time.monotonic()
    client = InferenceServerClient(f"127.0.0.1:{PORT}")
    while True:
        try:
            answer(client, name, inputs)
            return time.monotonic() - began_s
        except InferenceServerException:
            if time.monotonic() - began_s > _SERVED_WITHIN_S:
                raise
            time.sleep(_LOOK_S)


def add(name: str, path: Path, inputs: Inputs, *options: str) -> None:
    """Add a model and print after how long it served."""
    smelt("models", "add", name, str(path), *options)
    print(f"{name} serves {until_served(name, inputs):.1f} s after it was added", flush=True)


def kill_replica(name: str) -> None:
    """SIGKILL; there must be one."""
    (pid,) = (
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if f"ServeReplica:smelt:{name}:" in " ".join(process.info["cmdline"] or ())
    )
    os.kill(pid, signal.SIGKILL)


def show_status() -> None:
    """Print which model serves with what."""
    print(smelt("status"), flush=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--only", choices=("kill", "change"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["SMELT_HOME"] = home
        if options.only == "change":
            os.environ["SMELT_CONTROLLER_BUILDS"] = "false"
        folder = Path(home)
        export(_MODEL, folder)
        smelt("up", "--detach", "--grpc-port", str(PORT), "--metrics-port", "0")
        try:
            if options.only != "change":
                kill(folder, options.callers)
            if options.only != "kill":
                change(folder, options.callers)
            show_status()
            print(smelt("events"), flush=True)
        finally:
            smelt("down")


def kill(folder: Path, num_callers: int) -> None:
    """Two models share the GPU; the only replica of one is killed under load."""
    path, (inputs, *_) = exported(_MODEL, folder)
    recipe = folder / "recipe.yaml"
    recipe.write_text("num_replicas: 1\n")
    for name in ("a", "b"):
        add(name, path, inputs, "--recipe", str(recipe))
    show_status()
    with load("a", inputs, num_callers) as asking:
        time.sleep(5)
        kill_replica("a")
        num_answered = asking.answered + num_callers
        began_s = time.monotonic()
        asking.until(num_answered + num_callers)
        print(f"a serves again after {time.monotonic() - began_s:.1f} s", flush=True)
        asking.until(NUM_REQUESTS)


def change(folder: Path, num_callers: int) -> None:
    """A second version takes the place of the first under load, and leaves it again."""
    path, (inputs, *_) = exported(_MODEL, folder)
    recipe = folder / "recipe.yaml"
    recipe.write_text("num_replicas: 1\ngpu_share: 0.6\n")
    add("c", path, inputs, "--recipe", str(recipe))
    recipe.write_text("num_replicas: 1\ngpu_share: 0.61\n")
    with load("c", inputs, num_callers) as asking:
        change_to(2, "models", "add", "c", str(path), "--recipe", str(recipe))
        change_to(1, "models", "remove", "c", "--version", "2")
        asking.until(NUM_REQUESTS)


def change_to(version: int, *command: str) -> None:
    """Run a command, and print after how long a version of c alone serves."""
    began_s = time.monotonic()
    smelt(*command)
    while not _serves("c", version):
        time.sleep(_LOOK_S)
    print(f"c version {version} serves after {time.monotonic() - began_s:.1f} s", flush=True)


def _serves(name: str, version: int) -> bool:
    models = json.loads(smelt("status", "--json"))["models"]
    ready = [each["version"] for each in models if (each["name"], each["state"]) == (name, "READY")]
    return ready == [version]


if __name__ == "__main__":
    main()
