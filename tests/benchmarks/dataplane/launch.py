"""Starts what is compared, waits until it answers, and ends it with all that it began."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import grpc
import psutil

from tests.benchmarks.dataplane.payloads import check_answer, request_of
from tests.benchmarks.transport import grpc_links
from tests.benchmarks.transport.fleet import MALLOC_ENV

# Ray's own default is 15: behind everything else that runs here, Smelt's processes included.
_NICENESS = {"RAY_worker_niceness": "0"}
# Ray Serve with HAProxy needs the most: its replicas drain before they end.
_END_S, _CHILDREN_END_S = 90, 5
_ANSWER_S, _ASK_EVERY_S = 90, 0.1


def start(
    role: str, *arguments: str, env: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Starts a process of `processes`."""
    module = "tests.benchmarks.dataplane.processes"
    return start_module(sys.executable, module, role, *arguments, env=env, stdout=subprocess.PIPE)


def start_module(
    interpreter: str,
    module: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    stdout: int = subprocess.DEVNULL,
) -> "subprocess.Popen[str]":
    """Starts a module; its process keeps freed memory, as Smelt's own do."""
    return subprocess.Popen(
        [interpreter, "-m", module, *arguments],
        env=dict(os.environ) | MALLOC_ENV | _NICENESS | dict(env or {}),
        stdin=subprocess.PIPE,
        stdout=stdout,
        text=True,
    )


def line_of(process: "subprocess.Popen[str]") -> str:
    """The next line of a process's output; raises SystemExit when it ended instead."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a process ended; its error is above")
    return line.strip()


@contextmanager
def ended(process: "subprocess.Popen[str]") -> Iterator[None]:
    """Ends a process by closing its input when the block ends, and what it leaves behind."""
    try:
        yield
    finally:
        children = _children(process)
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _, left = psutil.wait_procs(children, _CHILDREN_END_S)
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def _children(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


async def until_answers(
    target: str, payloads: Sequence[str], process: "subprocess.Popen[str] | None" = None
) -> None:
    """Wait until the server answers these payloads rightly, unless its process has ended."""
    give_up_at = time.monotonic() + _ANSWER_S
    async with grpc_links.channel_to(target) as channel:
        link = grpc_links.UnaryLink(channel)
        for payload in payloads:
            while not await _answers(link, payload, is_last=time.monotonic() > give_up_at):
                if process is not None and process.poll() is not None:
                    raise SystemExit(f"{process.args!r} ended; its error is above")
                await asyncio.sleep(_ASK_EVERY_S)


async def _answers(link: grpc_links.UnaryLink, payload: str, *, is_last: bool) -> bool:
    try:
        answer = await link.call(request_of(payload))
    except grpc.RpcError:
        if is_last:
            raise
        return False
    check_answer(payload, answer)
    return True


def free_port() -> int:
    """A port that nobody had a moment ago, for servers that cannot be told to take any."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
