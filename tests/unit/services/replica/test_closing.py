"""Closing: whatever goes wrong in one part, the others are closed and callers are answered."""

import asyncio
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from services.contracts.errors import NotReadyError
from services.contracts.security.fleet_dialer import FleetDialer
from services.pb import fleet_v1_pb2 as fleet
from services.replica.batching.batch_builder import BatchBuilder
from services.replica.closing import close_all, ended
from services.replica.engine.executor import EngineThread
from services.replica.engine.standby import Standby
from services.replica.reporting.control_link import ControlLink
from services.replica.transport.data_server import DataServer
from tests.unit.services.replica.models import text_model
from tests.unit.services.replica.toy_batcher import (
    ToyEngine,
    assert_own,
    bench,
    executor_of,
    hold_engine,
    queue,
    text_call,
)


async def test_every_step_runs_and_the_first_error_is_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[int] = []

    async def step(number: int) -> None:
        done.append(number)
        if number < 2:
            raise ValueError(f"step {number}")

    with pytest.raises(ValueError, match="step 0"):
        await close_all(*(lambda n=n: step(n) for n in range(3)))
    assert done == [0, 1, 2]
    assert "step 1" in caplog.text


async def test_a_step_that_is_cancelled_leaves_no_other_out() -> None:
    began, done = asyncio.Event(), asyncio.Event()

    async def hangs() -> None:
        began.set()
        await asyncio.Event().wait()

    async def last() -> None:
        await asyncio.sleep(0)
        done.set()

    closing = asyncio.create_task(close_all(hangs, last))
    await began.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert done.is_set()


async def test_ending_a_task_tells_its_error_in_the_log_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails() -> None:
        raise ValueError("its own fault")

    task = asyncio.create_task(fails())
    await asyncio.wait([task])
    await ended(task)
    assert "its own fault" in caplog.text


def task_named(name: str) -> asyncio.Task[object]:
    (found,) = (task for task in asyncio.all_tasks() if task.get_name() == name)
    return found


async def test_a_batcher_that_died_still_answers_those_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bench(text_model(max_batch=1)) as b:
        held = await hold_engine(b)
        (waiting,) = await queue(b, [text_call()])
        monkeypatch.setattr(BatchBuilder, "take", _fails_at_once)
        task = task_named("batcher")
        b.engine.may_run.set()
        await asyncio.wait([task])
        assert not b.batcher.is_running
        assert_own(text_call(), await held)
        assert not waiting.done()
        await b.batcher.close()
        with pytest.raises(NotReadyError):
            await waiting


async def test_a_batcher_that_is_cancelled_answers_what_runs_and_what_waits() -> None:
    async with bench(text_model(max_batch=1)) as b:
        held = await hold_engine(b)
        (waiting,) = await queue(b, [text_call()])
        task_named("batcher").cancel()
        with pytest.raises(NotReadyError):
            await held
        await b.batcher.close()
        with pytest.raises(NotReadyError):
            await waiting


class BrokenDialer(FleetDialer):
    """Makes no channel, for a reason that nobody foresaw."""

    def aio_channel(self, *args: object) -> NoReturn:
        """Fail."""
        _fails_at_once()


async def test_a_control_line_whose_task_died_can_be_closed() -> None:
    link = ControlLink(
        "localhost:1",
        fleet.ReplicaReport,
        on_engines_changed=lambda digest: None,
        dialer=BrokenDialer(),
    )
    link.start()
    await asyncio.wait([task_named("control-link")])
    assert not link.is_running
    await link.close()


def _fails_at_once(*_: object) -> NoReturn:
    raise ValueError("a fault of its own")


class HeldEngine(ToyEngine):
    """Tells when it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.was_closed = threading.Event()

    def close(self) -> None:
        """Tell."""
        super().close()
        self.was_closed.set()


async def test_an_engine_is_closed_also_when_nobody_waits_for_it_any_more() -> None:
    engine, thread = HeldEngine(), EngineThread()
    executor = executor_of(engine, thread=thread)
    engine.may_run.clear()
    inputs = dict(text_call().inputs)
    running = asyncio.create_task(executor.call(engine.run, inputs))
    assert await asyncio.to_thread(engine.is_running.wait, 30)
    closing = asyncio.create_task(executor.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(RuntimeError, match="after shutdown"):
        thread.submit(int)
    engine.may_run.set()
    await running
    assert await asyncio.to_thread(engine.was_closed.wait, 30)


async def test_a_hung_engine_holds_up_the_closing_of_others_for_a_while_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    standby, engine, thread = Standby(close_timeout_s=0.01), HeldEngine(), EngineThread()
    engine.may_run.clear()
    running = asyncio.ensure_future(thread.submit(engine.run, dict(text_call().inputs)))
    standby.close_soon(executor_of(engine, thread=thread))
    await standby.drop()
    assert "1 engines hang" in caplog.text
    engine.may_run.set()
    await running
    assert await asyncio.to_thread(engine.was_closed.wait, 30)
    await standby.drop()


async def test_a_socket_that_cannot_be_removed_leaves_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_statistics() -> bytes:
        return b""

    server = DataServer(lambda frame: no_statistics(), no_statistics)
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        await server.listen(f"unix:{path}")
    plain = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path == paths[0]:
            raise PermissionError("a")
        plain(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(PermissionError):
        await server.close()
    assert not paths[1].exists()
