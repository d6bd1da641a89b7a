"""The replica as a process of its own, and as a deployment of a real local Ray."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.contracts.errors import EngineError
from services.pb import fleet_v1_pb2 as fleet
from services.replica.__main__ import until_unhealthy
from services.replica.settings import ReplicaSettings
from services.telemetry.ready import wait_ready

from .conftest import connected, until
from .controller import TestController
from .published import Shelf, assert_answers, ids_of, request_of


def environment_of(settings: ReplicaSettings, **changes: object) -> dict[str, str]:
    """This process's own, with these settings."""
    values = {**settings.model_dump(mode="json"), **changes}
    own = {
        f"SMELT_REPLICA_{name.upper()}": str(value)
        for name, value in values.items()
        if value is not None
    }
    return {**os.environ, **own}


def start_process(settings: ReplicaSettings, **changes: str) -> tuple[subprocess.Popen[bytes], int]:
    """A replica process and the pipe on which it announces itself."""
    read_fd, write_fd = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "services.replica"],
        env=environment_of(settings, **{"ready_fd": write_fd, **changes}),
        pass_fds=(write_fd,),
        stderr=subprocess.PIPE,
    )
    os.close(write_fd)
    return process, read_fd


async def test_a_process_serves_and_drains_on_sigterm(
    shelf: Shelf, settings: ReplicaSettings, controller: TestController
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    process, ready = start_process(settings)
    with process:
        said = wait_ready(ready, 60, "replica")
        token = bytes.fromhex(said["token"])
        async with connected(said["addresses"][0], token) as connection:
            ids = ids_of(3, 4)
            assert_answers(await connection.infer(request_of(ids)), ids)
        process.send_signal(signal.SIGTERM)
        # In a thread: the controller of this test must hear the replica's last report.
        status = await asyncio.to_thread(process.wait, 60)
        assert status == 0, process.stderr and process.stderr.read().decode()
    await until(controller, fleet.REPLICA_STATE_DRAINING)
    assert list(settings.socket_dir.iterdir()) == []


async def test_a_process_that_cannot_answer_any_more_ends_and_says_why(
    shelf: Shelf, settings: ReplicaSettings
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    process, ready = start_process(settings)
    with process:
        said = await asyncio.to_thread(wait_ready, ready, 60, "replica")
        # Its data port is there no more for anybody who connects.
        path = Path(said["addresses"][0].removeprefix("unix:"))
        await asyncio.to_thread(path.unlink)
        _, stderr = await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 70
    assert re.search("health check failed, 3 of 3 in a row: data port .* does not", stderr.decode())
    assert "the replica cannot answer any more" in stderr.decode()


async def test_only_failures_in_a_row_end_a_process() -> None:
    """One of them may be a machine that stood still."""
    verdicts = iter([False, False, True, False, True, False, False, False])
    num_asked = 0

    class Server:
        """Says what the test wants of its health."""

        async def check_health(self) -> None:
            """Fail or not."""
            nonlocal num_asked
            num_asked += 1
            if not next(verdicts):
                raise EngineError("ill")

    async with asyncio.timeout(30):
        await until_unhealthy(Server(), 0.0)
    assert num_asked == 8


@asynccontextmanager
async def hung_process(
    settings: ReplicaSettings, when: str, stall_s: float = 3600.0, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A replica process whose engine hangs; see there."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.replica.hung_process",
        when,
        str(stall_s),
        env=environment_of(settings) | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(90):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_a_process_whose_engine_hangs_ends_all_the_same(
    shelf: Shelf, settings: ReplicaSettings
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    async with hung_process(settings, "serving", stall_s=0.0) as process:
        _, stderr = await process.communicate()
    assert process.returncode == 70, stderr.decode()
    assert "engine has not returned" in stderr.decode()


async def test_a_process_whose_engine_hangs_ends_as_it_is_told(
    shelf: Shelf, settings: ReplicaSettings
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    # Spans leave at the end alone.
    traced = {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "3600000"}
    async with hung_process(settings, "serving", **traced) as process:
        assert process.stdout
        assert await process.stdout.readline() == b"hangs\n"
        process.send_signal(signal.SIGTERM)
        stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    assert "1 requests unanswered after" in stderr.decode()
    assert "ends without waiting for what may hang" in stderr.decode()
    assert '"name": "batch"' in stdout.decode()


async def test_a_process_that_cannot_start_ends_though_its_engine_hangs(
    shelf: Shelf, settings: ReplicaSettings
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    async with hung_process(settings, "starting") as process:
        _, stderr = await process.communicate()
    assert process.returncode == 1, stderr.decode()
    assert "no port is free" in stderr.decode()


@pytest.mark.parametrize(
    ("when", "told", "status"),
    [
        ("looking", signal.SIGTERM, 0),
        ("looking", signal.SIGINT, 0),
        # It serves nobody yet, so there is nothing to drain.
        ("loading", signal.SIGTERM, -signal.SIGTERM),
        ("loading", signal.SIGINT, -signal.SIGINT),
    ],
)
async def test_a_process_ends_as_it_is_told_whatever_its_threads_wait_for(
    shelf: Shelf, settings: ReplicaSettings, when: str, told: signal.Signals, status: int
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    async with hung_process(settings, when) as process:
        assert process.stdout
        assert await process.stdout.readline() == b"hangs\n"
        process.send_signal(told)
        _, stderr = await process.communicate()
    assert process.returncode == status, stderr.decode()


@pytest.mark.slow
async def test_a_process_compiles_its_fallback_into_its_own_cache(
    shelf: Shelf, settings: ReplicaSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    # Seconds less, where nothing is warm; where headers go is a test of its own.
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    shelf.publish_model()
    process, ready = start_process(settings)
    with process:
        said = await asyncio.to_thread(wait_ready, ready, 250, "replica")
        async with connected(said["addresses"][0], bytes.fromhex(said["token"])) as connection:
            ids = ids_of(3, 4)
            assert_answers(await connection.infer(request_of(ids)), ids)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
    written = [path for path in await asyncio.to_thread(all_files, tmp_path) if "inductor" in path]
    compiled = str(settings.cache_dir / "inductor")
    assert any(path.endswith(".so") for path in written)
    assert [path for path in written if not path.startswith(compiled)] == []


def all_files(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"num_threads": "-1"}, 2, "SMELT_REPLICA_NUM_THREADS: .*expected at least 0"),
        ({"model": "absent"}, 1, "model 'absent' not found; there are: toy"),
    ],
)
def test_a_process_that_cannot_serve_says_why(
    shelf: Shelf, tmp_path: Path, changes: dict[str, str], status: int, words: str
) -> None:
    shelf.publish_model()
    settings = ReplicaSettings(store_url=str(tmp_path / "store"), cache_dir=tmp_path, model="toy")
    process, ready = start_process(settings, **changes)
    os.close(ready)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == status
    assert re.search(words, stderr.decode())


@pytest.mark.slow
async def test_ray_serve_places_restarts_and_drains_replicas(
    shelf: Shelf, settings: ReplicaSettings, controller: TestController
) -> None:
    shelf.publish_model()
    engine = shelf.publish_engine()
    async with ray_driver(
        {**settings.model_dump(mode="json"), "num_replicas": "auto", "num_gpus": 0.1}
    ) as driver:
        first = await until(controller, fleet.REPLICA_STATE_READY)
        assert first.engine_digest == engine.digest
        ids = ids_of(2, 5)
        for address in first.addresses:
            async with connected(address, first.data_token) as connection:
                assert_answers(await connection.infer(request_of(ids)), ids)

        os.kill(first.process_id, signal.SIGKILL)
        async with asyncio.timeout(90):
            second = await controller.report_where(
                lambda r: r.state == fleet.REPLICA_STATE_READY and r.process_id != first.process_id
            )
        async with connected(second.addresses[0], second.data_token) as connection:
            assert_answers(await connection.infer(request_of(ids)), ids)

        assert driver.stdin
        driver.stdin.close()
        async with asyncio.timeout(90):
            await controller.report_where(
                lambda r: (
                    r.state == fleet.REPLICA_STATE_DRAINING and r.process_id == second.process_id
                )
            )
            await controller.detached()


async def test_a_wrong_argument_is_named_before_anything_is_placed() -> None:
    args = {"store_url": "x", "cache_dir": "y", "model": "m", "num_thread": 2}
    process = await start_driver(args)
    _, stderr = await process.communicate()
    assert process.returncode == 1
    assert "InvalidRequestError: replica settings: " in stderr.decode()
    assert "num_thread" in stderr.decode()


async def start_driver(args: dict[str, object]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("ray_driver.py")),
        json.dumps(args),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@asynccontextmanager
async def ray_driver(args: dict[str, object]) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with a Ray of its own that serves until its standard input is closed."""
    process = await start_driver(args)
    try:
        assert process.stdout
        if not await process.stdout.readline():
            _, stderr = await process.communicate()
            pytest.fail(f"no replica: {stderr.decode()[-4000:]}")
        yield process
    finally:
        await process.communicate()
    assert process.returncode == 0
