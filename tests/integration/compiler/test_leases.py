"""Several workers on one store: one key is built once, and what a dead one began is finished."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.proof.proof_job import prove_published
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.builds.held_lease import take_lease
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import ModelVersion, ProofOutcome
from services.contracts.store.object_store import open_store
from tests.integration.compiler.conftest import with_settings
from tests.s3 import empty_s3_store, s3_server

pytestmark = pytest.mark.usefixtures("forked_children")

ROOT = Path(__file__).resolve().parents[3]
QUICK = ("--benchmark-s", "0", "--benchmark-iterations", "3", "--num-threads", "1")
WAITING = "wait: another worker builds it"


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.slow)])
def store_url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """An empty store that several processes can open."""
    if request.param == "local":
        return str(tmp_path / "store")
    return empty_s3_store(request.getfixturevalue("s3_endpoint"), monkeypatch)


@pytest.fixture
def settings(store_url: str, tmp_path: Path) -> CompilerSettings:
    """Those of this process, which only looks at the store."""
    return CompilerSettings(store_url=store_url, cache_dir=tmp_path / "cache")


@dataclass(frozen=True)
class Worker:
    """A compiler's process of its own, with a cache of its own, as on another machine."""

    process: subprocess.Popen[str]

    def held_child(self) -> psutil.Process:
        """The process that is to build, once it holds still; the worker has the lease then."""
        worker = psutil.Process(self.process.pid)
        while self.process.poll() is None:
            for child in worker.children():
                if child.status() == psutil.STATUS_STOPPED:
                    return child
            time.sleep(0.05)
        raise AssertionError(f"it ended before its child held still: {self.process.communicate()}")

    def wait_for(self, words: str) -> None:
        """Return when it has said that."""
        assert self.process.stderr is not None
        told = []
        for line in self.process.stderr:
            told.append(line)
            if words in line:
                return
        raise AssertionError(f"it ended before it said '{words}': {''.join(told)}")

    def report(self) -> str:
        """What it says at its end, when all went well."""
        told, log = self.process.communicate(timeout=240)
        assert self.process.returncode == 0, log
        return told


@contextmanager
def running_worker(
    cache: Path, store_url: str, lease_s: float, *, is_held: bool = False
) -> Iterator[Worker]:
    """One that builds the tiny model's onnxruntime engine, or whose child is held still first."""
    environment = {"SMELT_BUILD_LEASE_S": str(lease_s)}
    if is_held:
        environment["SMELT_TESTS_STOPPED"] = "build-one"
    command = [sys.executable, "-m", "compiler_worker", "build", "tiny", "--kind", "onnxruntime"]
    with subprocess.Popen(
        [*command, *QUICK, "--store-url", store_url, "--cache-dir", str(cache)],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Worker(process)
        finally:
            process.kill()


@dataclass(frozen=True)
class Pair:
    """A worker whose child is held still before it builds, and one that waits for it."""

    first: Worker
    child: psutil.Process
    second: Worker


@contextmanager
def pair(folder: Path, store_url: str, lease_s: float) -> Iterator[Pair]:
    """Both on one key; the first one's process goes on to renew its lease."""
    with running_worker(folder / "a", store_url, lease_s, is_held=True) as first:
        child = first.held_child()
        with running_worker(folder / "b", store_url, lease_s) as second:
            second.wait_for(WAITING)
            yield Pair(first, child, second)


def test_two_workers_build_one_key_once(
    worker: WorkerContext, version: ModelVersion, store_url: str, tmp_path: Path
) -> None:
    with pair(tmp_path, store_url, 60.0) as both:
        both.child.resume()
        assert "passed" in both.second.report()
        assert "proven in" in both.first.report()
    (engine,) = worker.registry.engines()
    (record,) = worker.registry.build_records(engine.digest)
    assert record.outcome is BuildOutcome.PROVEN
    assert worker.registry.lease(engine.digest).is_free
    # What both went through is gone, but for the last word.
    store = open_store(store_url)
    assert len(store.list(f"leases/{engine.digest}/")) == 1


def test_what_a_killed_worker_began_another_one_finishes(
    worker: WorkerContext, version: ModelVersion, store_url: str, tmp_path: Path
) -> None:
    with pair(tmp_path, store_url, 2.0) as both:
        both.first.process.send_signal(signal.SIGKILL)
        assert "proven in" in both.second.report()
    assert not both.child.is_running(), "it ends with its worker"
    (engine,) = worker.registry.engines()
    assert engine.proof.outcome is ProofOutcome.PASSED
    assert len(worker.registry.build_records(engine.digest)) == 1


def test_a_worker_that_was_suspended_gives_way_to_the_one_that_took_over(
    worker: WorkerContext, version: ModelVersion, store_url: str, tmp_path: Path
) -> None:
    with running_worker(tmp_path / "a", store_url, 2.0, is_held=True) as first:
        first.held_child()
        first.process.send_signal(signal.SIGSTOP)
        with running_worker(tmp_path / "b", store_url, 2.0) as second:
            # The lease is its own now.
            second.wait_for(": build")
            first.process.send_signal(signal.SIGCONT)
            assert "proven in" in second.report()
        # Its own attempt was ended; it takes what the other one made.
        assert "passed" in first.report()
    (engine,) = worker.registry.engines()
    assert len(worker.registry.build_records(engine.digest)) == 1


def test_a_proof_whose_lease_was_lost_after_its_child_ended_is_not_added(
    worker: WorkerContext, version: ModelVersion
) -> None:
    quick = with_settings(
        worker, num_threads=1, benchmark_s=0.01, benchmark_iterations=3, build_lease_s=0.1
    )
    build_model(version, Wanted(kinds=(EngineKind.ONNXRUNTIME,)), quick)
    registry = worker.registry
    (engine,) = registry.engines()
    digest = engine.digest

    def lose_the_lease(_: object) -> None:
        """As if this process was suspended, and another one proved the engine meanwhile."""
        own = next(t for t in threading.enumerate() if t.name == f"lease {digest[:12]}")
        taken = None
        while taken is None:  # it is renewed at any time
            taken = take_lease(registry, digest, registry.lease(digest), 3600.0)
        with taken:
            refused = engine.proof.model_copy(update={"outcome": ProofOutcome.FAILED})
            registry.add_proof(digest, refused)
            own.join()

    found = prove_published(digest, quick, version, lose_the_lease)
    assert found.proof.outcome is ProofOutcome.FAILED
    assert registry.engine(digest) == found
