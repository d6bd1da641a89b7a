"""An external model of KServe v2 over gRPC: bytes are passed on, with the names exchanged.

Of a field that repeats the last one counts: names are appended, and no message is parsed.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from services.contracts.errors import (
    AnswerTooLargeError,
    DeadlineExceededError,
    ExternalServerError,
    InvalidRequestError,
    NotFoundError,
    NotReadyError,
    OverloadedError,
    SmeltError,
    UnsupportedFeatureError,
)
from services.contracts.external.dial import kserve_channel, kserve_path, one_line
from services.contracts.external.external_model import ExternalModel
from services.contracts.kserve.protobuf_wire import varint_bytes
from services.contracts.transport.frames import Payload
from services.gateway.upstream.external_connection import ExternalConnection, ExternalLimits
from services.pb import open_inference_v2_pb2 as pb

_Code = grpc.StatusCode
# What is the request's own fault, and what another server may answer; all else is the server's.
_ERRORS: Final[dict[grpc.StatusCode, type[SmeltError]]] = {
    _Code.INVALID_ARGUMENT: InvalidRequestError,
    _Code.FAILED_PRECONDITION: InvalidRequestError,
    _Code.OUT_OF_RANGE: InvalidRequestError,
    _Code.NOT_FOUND: NotFoundError,
    _Code.RESOURCE_EXHAUSTED: OverloadedError,
    _Code.DEADLINE_EXCEEDED: DeadlineExceededError,
    _Code.UNIMPLEMENTED: UnsupportedFeatureError,
    # Also the status by which gRPC's own servers end their calls when they are stopped.
    _Code.UNAVAILABLE: NotReadyError,
}
# gRPC's own words where this side refuses a message; its status is that of an overloaded server.
_TOO_LARGE: Final = re.compile(r"CLIENT: Received message larger than max \((\d+) vs\. (\d+)\)")
# Fields 1 and 2 of requests and answers.
_NAME_TAG: Final = b"\x0a"
_VERSION_TAG: Final = b"\x12"
_ERROR_TAG: Final = b"\x0a"
_ANSWER_TAG: Final = b"\x12"


class StreamedRequest(bytes):
    """A ModelInferRequest of a stream, which may have several answers.

    Attributes:
        emit: takes each of them as a ModelStreamInferResponse; the answer to the call is then
            empty.
        is_begun: one was taken, so that no other server may be asked.
    """

    emit: Callable[[bytes], Awaitable[None]]
    is_begun = False


class KserveConnection(ExternalConnection):
    """Asks over one channel."""

    def __init__(self, model: ExternalModel, limits: ExternalLimits) -> None:
        """As every connection to an external server."""
        super().__init__(model, limits)
        self._theirs = _names(model.remote_name, model.remote_version)
        self._ours = _names(model.name, str(model.version))
        # A message that comes twice is merged.
        self._ours_in_stream = _ANSWER_TAG + varint_bytes(len(self._ours)) + self._ours
        self._most_bytes = max(limits.max_answer_bytes - len(self._ours_in_stream), 0)
        self._channel = kserve_channel(model, self._most_bytes)
        self._infer = self._channel.unary_unary(kserve_path("ModelInfer"))
        self._stream = self._channel.stream_stream(kserve_path("ModelStreamInfer"))

    async def infer(
        self, request: Payload, timeout_s: float | None = None, *, trace: str = ""
    ) -> Payload:
        """The answer's bytes; see `ReplicaConnection.infer`.

        Raises:
            ConnectionLostError: the server cannot be reached.
            ExternalServerError: it failed.
            AnswerTooLargeError: a message of it is larger than the gateway takes.
            SmeltError: what it answered, in the class of its status.
        """
        body = b"".join((request, self._theirs))
        metadata = tuple(self._headers(trace).items())
        try:
            if isinstance(request, StreamedRequest):
                # Only its client limits all of it: answers may come for as long as they are made.
                stream = self._stream(timeout=timeout_s, metadata=metadata)
                await self._pass_on(stream, body, request)
                return b""
            whole_s = self._limits.first_byte_s if timeout_s is None else timeout_s
            answer: bytes | None = await self._infer(body, timeout=whole_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            found = self._raised(error)
            is_begun = isinstance(request, StreamedRequest) and request.is_begun
            if is_begun and not isinstance(found, AnswerTooLargeError):
                found = ExternalServerError(str(found))
            raise found from error
        if answer is None:  # gRPC's own of a server that ends the call in order without a message
            raise self._failed("answers with no message")
        return answer + self._ours

    async def ask(self, rpc: str, answer: Any) -> Any:
        """The answer, of that class, to an RPC about the model; raises as `infer`."""
        try:
            raw = await self._channel.unary_unary(kserve_path(rpc))(
                self._theirs,  # such requests have these two fields
                timeout=self._limits.idle_s,
                metadata=tuple(self._headers("").items()),
            )
        except grpc.aio.AioRpcError as error:
            raise self._raised(error) from error
        return self._parsed(answer, raw)

    def close(self) -> None:
        """Nothing is outstanding: the channel is closed."""
        asyncio.ensure_future(self._channel.close())  # noqa: RUF006 - it needs no caller

    async def _pass_on(self, stream: Any, body: bytes, request: StreamedRequest) -> None:
        now_s = asyncio.get_running_loop().time
        limits = self._limits
        try:
            async with asyncio.timeout(limits.first_byte_s) as timer:
                await stream.write(body)
                await stream.done_writing()
                async for message in stream:
                    # The client's time to take it is not the server's.
                    timer.reschedule(None)
                    if message.startswith(_ERROR_TAG):
                        fault = self._parsed(pb.ModelStreamInferResponse, message).error_message
                        raise self._failed(f"answers with an error: {one_line(fault)}")
                    request.is_begun = True
                    await request.emit(message + self._ours_in_stream)
                    timer.reschedule(now_s() + limits.idle_s)
        except TimeoutError as error:
            why = f"did not begin to answer within {limits.first_byte_s:g} s"
            if request.is_begun:
                why = f"sent nothing for {limits.idle_s:g} s within an answer"
            raise DeadlineExceededError(self._words(why)) from error
        finally:
            stream.cancel()

    def _parsed(self, message: Any, raw: bytes) -> Any:
        try:
            return message.FromString(raw)
        except (DecodeError, TypeError) as error:  # or none at all
            raise self._failed("answers with another message") from error

    def _raised(self, error: grpc.aio.AioRpcError) -> SmeltError:
        code = error.code()
        is_connected = self._channel.get_state() is grpc.ChannelConnectivity.READY
        if code is _Code.UNAVAILABLE and not is_connected:
            return self._unreachable(one_line(error.details()), may_have_run=True)
        refused = _TOO_LARGE.search(error.details() or "")
        if refused and int(refused[2]) == self._most_bytes:
            return AnswerTooLargeError(
                self._words(
                    f"answers {refused[1]} bytes: at most {refused[2]} are accepted; ask for less "
                    "at once or raise SMELT_GATEWAY_MAX_MESSAGE_BYTES"
                )
            )
        words = self._words(f"answers {code.name}: {one_line(error.details(), 500)}")
        return _ERRORS.get(code, ExternalServerError)(words)


def _names(name: str, version: str) -> bytes:
    """The two fields, also of an empty version: it takes the place of another one."""
    pairs = ((_NAME_TAG, name.encode()), (_VERSION_TAG, version.encode()))
    return b"".join(tag + varint_bytes(len(value)) + value for tag, value in pairs)
