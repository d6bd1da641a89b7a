"""ModelStreamInfer: many requests on one stream, answered in their order.

Triton's terms: the error of a request is sent in its own message and the stream goes on, unless
the client asked for gRPC errors; every answer is marked as its request's last one, which is
what clients of models with several answers wait for.
"""

import asyncio
from asyncio import QueueFull
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from services.contracts.errors import InvalidRequestError, OverloadedError
from services.contracts.kserve.protobuf_wire import varint_bytes
from services.contracts.transport.frames import Payload
from services.gateway.api.status_codes import Refusal, StatusTable
from services.gateway.pipeline.request_head import request_head_from_bytes
from services.gateway.upstream.kserve_connection import StreamedRequest
from services.grpc_server.calls.call import UNREAD
from services.grpc_server.calls.context import Context
from services.grpc_server.calls.servicer_context import counter_of_answers, hold_request
from services.pb import open_inference_v2_pb2 as pb

# Metadata with which a client wants the stream to end with the first error's status.
GRPC_ERROR_KEY: Final = "triton_grpc_error"
# A request, or why it may not be asked.
Incoming = Payload | Exception
Answer = Callable[[Payload, float | None], Awaitable[Payload]]
# Counts so many bytes of answers more that wait for their client, or fewer; see `_Ahead.hold`.
Hold = Callable[[int], None]
_Result = asyncio.Task["Payload | _Failed | _Parts"]
# Answers to one request that wait for their client; an external server then waits too.
_MAX_PARTS: Final = 16
# Enough to fill a batch; a client that sends more waits in its own flow control.
MAX_AHEAD: Final = 128
_ANSWER_TAG: Final = b"\x12"
# Appended to a serialised answer it is one more of its parameters (a map's entries repeat).
_IS_FINAL: Final = pb.ModelInferResponse(
    parameters={"triton_final_response": pb.InferParameter(bool_param=True)}
).SerializeToString()
# The most that `framed` adds: a message's size, below 2 GiB, has five bytes.
FRAME_BYTES: Final = len(_ANSWER_TAG) + 5 + len(_IS_FINAL)


@dataclass(frozen=True)
class InferenceStreams:
    """Serves streams; holds nothing between them.

    Attributes:
        answer: gets a request's bytes and the stream's deadline.
        statuses: of errors.
        has_parts: whether a request may have several answers.
    """

    answer: Answer
    statuses: StatusTable
    has_parts: Callable[[Payload], bool] = lambda _: False

    async def serve(
        self, requests: AsyncIterable[Incoming], deadline_s: float | None, context: Context
    ) -> AsyncIterator[bytes]:
        """Serialised ModelStreamInferResponses, one for each request, in the requests' order.

        Args:
            requests: of the client; at most `MAX_AHEAD` are read ahead.
            deadline_s: of the stream, passed on with each request; None without one.
            context: of the call; aborted at the first error where the client asked for gRPC errors.
        """
        is_strict = (GRPC_ERROR_KEY, "true") in tuple(context.invocation_metadata() or ())
        queue = _Ahead(counter_of_answers(context))
        reading = asyncio.create_task(self._read(requests, deadline_s, context, queue))
        try:
            async for answer in queue:
                result = await answer
                if isinstance(result, _Parts):
                    while (part := await result.queue.get()) is not None:
                        queue.hold(-len(part))
                        yield part
                    result = await result.answer
                    if result == b"":
                        continue  # the answers were all of it
                if not isinstance(result, _Failed):
                    message = framed(result)
                    queue.hold(-len(result))
                elif is_strict:
                    refusal = result.refusal
                    await context.abort(refusal.code, refusal.details, refusal.trailing)
                else:
                    message = result.message
                # A stream that idles holds nothing of what was asked before.
                del answer, result
                yield message
                del message
            await reading
        finally:
            reading.cancel()
            queue.cancel()

    async def _read(
        self,
        requests: AsyncIterable[Incoming],
        deadline_s: float | None,
        context: Context,
        queue: "_Ahead",
    ) -> None:
        try:
            # First: a request that is not taken yet is in its client's flow-control window.
            await queue.has_room()
            async for incoming in requests:
                answer = asyncio.create_task(self._result(incoming, deadline_s, queue.hold))
                if (release := hold_request(context)) is not None:
                    # Also of one that is cancelled before its first step.
                    answer.add_done_callback(partial(_call, release))
                queue.add(answer)
                del incoming, answer
                await queue.has_room()
        finally:
            queue.end()

    def _parts(self, body: Payload, deadline_s: float | None, hold: Hold) -> "_Parts":
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_PARTS)

        async def emit(part: bytes) -> None:
            hold(len(part))
            await queue.put(part)

        request = StreamedRequest(body)
        request.emit = emit
        return _Parts(asyncio.create_task(self._whole(request, deadline_s, queue, hold)), queue)

    async def _whole(
        self,
        request: StreamedRequest,
        deadline_s: float | None,
        queue: "asyncio.Queue[bytes | None]",
        hold: Hold,
    ) -> "Payload | _Failed":
        """The end of a request that has several answers, which is marked in their queue."""
        result: Payload | _Failed
        try:
            result = await self.answer(request, deadline_s)
            hold(len(result))
        except Exception as error:
            refusal = self.statuses.refusal_of(error)
            result = _Failed(refusal, failed(request, refusal.details))
        except asyncio.CancelledError:
            with suppress(QueueFull):  # then its reader has ended
                queue.put_nowait(None)
            raise
        await queue.put(None)
        return result

    async def _result(
        self, incoming: Incoming, deadline_s: float | None, hold: Hold
    ) -> "Payload | _Failed | _Parts":
        """The result of one request. Made in its own task, which knows the request's id."""
        try:
            if isinstance(incoming, Exception):
                raise incoming
            if self.has_parts(incoming):
                return self._parts(incoming, deadline_s, hold)
            answer = await self.answer(incoming, deadline_s)
            hold(len(answer))
            return answer
        except Exception as error:
            refusal = self.statuses.refusal_of(error)
        # Now, as what waits for its turn holds no request.
        body = b"" if isinstance(incoming, Exception) else incoming
        return _Failed(refusal, failed(body, refusal.details))


class _Failed(NamedTuple):
    """The answer to a request that failed.

    Attributes:
        message: on a stream that goes on.
    """

    refusal: Refusal
    message: bytes


class _Parts(NamedTuple):
    """The answers to a request that has several, in a queue that ends with None.

    Attributes:
        answer: what comes after them.
    """

    answer: "asyncio.Task[Payload | _Failed]"
    queue: "asyncio.Queue[bytes | None]"


class _Ahead:
    """Requests under way, oldest first, and a bound on how many."""

    def __init__(self, count: Callable[[int], bool]) -> None:
        self._count = count
        self._num_held = 0
        self._is_over = False
        self._room = asyncio.Semaphore(MAX_AHEAD)
        self._queue: asyncio.Queue[_Result | None] = asyncio.Queue()
        self._answers: set[_Result] = set()

    async def has_room(self) -> None:
        """Return once one more may be under way."""
        await self._room.acquire()

    def add(self, answer: _Result) -> None:
        """One more; its turn comes after all before it."""
        self._answers.add(answer)
        self._queue.put_nowait(answer)

    def hold(self, num_bytes: int) -> None:
        """So many bytes more of answers wait, or fewer; raises OverloadedError."""
        if self._is_over:
            return
        if not self._count(num_bytes):
            raise OverloadedError(UNREAD)
        self._num_held += num_bytes

    def end(self) -> None:
        """No more will come."""
        self._queue.put_nowait(None)

    def cancel(self) -> None:
        """The stream ended: cancel what is under way."""
        self.hold(-self._num_held)
        self._is_over = True
        for answer in self._answers:
            # One that is done may have begun what is not.
            is_done = not answer.cancel() and not answer.cancelled() and not answer.exception()
            result = answer.result() if is_done else None
            if isinstance(result, _Parts):
                result.answer.cancel()

    async def __aiter__(self) -> AsyncIterator[_Result]:
        """Each request's answer to come."""
        while (each := await self._queue.get()) is not None:
            yield each
            self._answers.discard(each)
            self._room.release()
            del each


def _call(release: Callable[[], None], _: _Result) -> None:
    release()


def framed(answer: Payload) -> bytes:
    """A ModelStreamInferResponse around a serialised ModelInferResponse, which is not parsed."""
    size = len(answer) + len(_IS_FINAL)
    return b"".join((_ANSWER_TAG, varint_bytes(size), answer, _IS_FINAL))


def failed(body: Payload, details: str) -> bytes:
    """The message of a request that failed; with its id, by which clients know it."""
    request_id = ""
    with suppress(InvalidRequestError):
        request_id = request_head_from_bytes(body).request_id
    return pb.ModelStreamInferResponse(
        error_message=details, infer_response=pb.ModelInferResponse(id=request_id)
    ).SerializeToString()
