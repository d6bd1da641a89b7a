"""The replica as a process of its own, and as a deployment of a real local Ray."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.process.settings import read_settings
from services.pb import fleet_v1_pb2 as fleet
from services.replica.settings import ReplicaSettings
from services.telemetry.ready import wait_ready
from tests.integration.replica.conftest import connected, until
from tests.integration.replica.controller import TestController
from tests.integration.replica.published import Shelf, assert_answers, ids_of, request_of


def environment_of(settings: ReplicaSettings, ready_fd: int) -> dict[str, str]:
    """This process's own, with these settings."""
    values = {**settings.model_dump(mode="json"), "ready_fd": ready_fd}
    own = {
        f"SMELT_REPLICA_{name.upper()}": str(value)
        for name, value in values.items()
        if value is not None
    }
    return {**os.environ, **own}


def start_process(settings: ReplicaSettings) -> tuple[subprocess.Popen[bytes], int]:
    """A replica process and the pipe on which it announces itself."""
    read_fd, write_fd = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.replica_process"],
        env=environment_of(settings, write_fd),
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


def test_a_setting_that_is_wrong_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="SMELT_REPLICA_NUM_THREADS: .*at least 0"):
        read_settings(ReplicaSettings, store_url="x", cache_dir="y", model="m", num_threads=-1)


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
