"""Callers in a closed loop: each sends its next request when the last one has ended."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import grpc

from services.cli.fleet.control_client import Metadata
from services.cli.requests.infer import ANSWER_TIMEOUT_S, INFERENCE
from services.contracts.errors import InvalidRequestError
from services.contracts.process.backoff import Backoff

# Linux counts both (Documentation/scheduler/sched-stats.rst).
_SCHEDULED = Path("/proc/thread-self/schedstat")
# The same request again cannot help.
_REFUSALS = {grpc.StatusCode.INVALID_ARGUMENT.name, grpc.StatusCode.UNIMPLEMENTED.name}
# After a failure. Failures that come at once would else be as many as the client can send, and
# take the CPU of what is measured.
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_Infer: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"


@dataclass(kw_only=True)
class LoadResult:
    """What a load met.

    Attributes:
        latencies_s: of each request that was answered, from its sending on.
        elapsed_s: from the first request to the end of the last.
        errors: how many requests failed, by status code; those that warmed up count as well.
        details: by status code, the message of the first failure.
        client_share: of that time, how much the event loop computed or waited for a CPU.
    """

    latencies_s: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    details: dict[str, str] = field(default_factory=dict)
    client_share: float = 0.0

    async def ask(self, infer: _Infer, request: bytes, metadata: Metadata) -> bool:
        """Send one request and count how it ended; gRPC errors are counted and not raised.

        Args:
            infer: the gateway's ModelInfer, for serialised requests.
            request: serialised.
            metadata: of the call.

        Returns:
            Whether it was answered.
        """
        began_s = time.perf_counter()
        try:
            await infer(request, timeout=ANSWER_TIMEOUT_S, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            self.errors[code] += 1
            self.details.setdefault(code, error.details() or "")
            return False
        self.latencies_s.append(time.perf_counter() - began_s)
        return True


async def run_load(
    connect: Callable[[], grpc.aio.Channel],
    requests: Sequence[bytes],
    num_callers: int,
    seconds: float,
    metadata: Metadata = (),
) -> LoadResult:
    """Keep so many requests in flight; those that are out at the end are awaited.

    A caller whose request failed waits before the next one, longer after each failure in a row.

    Args:
        connect: makes a caller's channel: each has a connection of its own, as clients in other
            processes have, so that several gateway workers share the load.
        requests: serialised; callers take turns with them.
        num_callers: requests in flight.
        seconds: after which no caller begins another request.
        metadata: of each call.

    Raises:
        InvalidRequestError: the first requests were refused, as all others would be.
    """
    found = LoadResult()
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(connect()) for _ in range(num_callers)]
        # Requests are serialised already, and answers are not read.
        callers = [each.unary_unary(f"{INFERENCE}/ModelInfer", bytes, bytes) for each in channels]
        # Opens the connections, and meets a shape for the first time: some engines compile then.
        await asyncio.gather(*(found.ask(each, requests[0], metadata) for each in callers))
        for code in found.errors.keys() & _REFUSALS if not found.latencies_s else ():
            raise InvalidRequestError(f"{code}: {found.details[code]}")
        found.latencies_s.clear()
        began_s = time.perf_counter()
        began_busy_s = _busy_s()

        async def call(number: int, infer: _Infer) -> None:
            backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            while (left_s := began_s + seconds - time.perf_counter()) > 0:
                if await found.ask(infer, requests[number % len(requests)], metadata):
                    backoff.reset()
                else:
                    await asyncio.sleep(min(backoff.next_pause_s(), left_s))
                number += 1

        await asyncio.gather(*(call(*each) for each in enumerate(callers)))
        found.elapsed_s = time.perf_counter() - began_s
        found.client_share = (_busy_s() - began_busy_s) / found.elapsed_s
    return found


def _busy_s() -> float:
    """Seconds that this thread, the event loop's, computed or had no CPU to compute on."""
    try:
        computed_ns, waited_ns, _ = _SCHEDULED.read_text().split()
    except OSError:
        return time.thread_time()
    return 1e-9 * (int(computed_ns) + int(waited_ns))
