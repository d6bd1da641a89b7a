"""Runs the handler of a call: its request, its answers, and its errors as a status."""

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import grpc

from services.grpc_server.calls.context import AbortError
from services.grpc_server.request.messages import CompressedMessage, Message, StatusError

if TYPE_CHECKING:
    from services.grpc_server.calls.call import Call

    Handler = grpc.RpcMethodHandler[Any, Any]

logger = logging.getLogger(__name__)

_OK: Final = (None, grpc.StatusCode.OK)


class Requests:
    """The messages of a request stream, for a handler to iterate over."""

    def __init__(self, call: "Call", deserializer: Callable[[Any], Any] | None) -> None:
        self._call = call
        self._deserializer = deserializer

    def __aiter__(self) -> "Requests":
        return self

    async def __anext__(self) -> Any:
        """The next message; raises as `Call.next_message`."""
        return deserialized(await self._call.next_message(), self._deserializer)


async def run_handler(
    call: "Call", handler: "Handler", given: "Message | CompressedMessage | Requests"
) -> None:
    """Run a call's handler on its request, or on its stream of requests, and end the call.

    Errors of the handler become the call's status; only a cancellation is raised again.

    Args:
        call: has begun.
        handler: of the call's method.
        given: the one message of a unary request, or the stream of messages.
    """
    try:
        if isinstance(given, Requests):
            request: Any = given
        else:
            upload = call.upload
            if upload is not None:
                # Before it is decompressed: the call may not be authorized.
                await upload.checked()
            if isinstance(given, CompressedMessage):
                assert upload is not None
                given = await upload.decompressed(given)
            request = deserialized(given, handler.request_deserializer)
        call.is_handled = True
        if handler.response_streaming:
            await _run_stream(call, handler, request)
        else:
            behaviour: Any = handler.stream_unary or handler.unary_unary
            context = call.context
            answer = await behaviour(request, context)
            if context.is_plain or context.code() in _OK:
                serializer = handler.response_serializer
                call.answer(answer if serializer is None else serializer(answer))
            else:
                call.finish()
    except AbortError as abort:
        call.end(abort.code, abort.details, abort.trailing)
    except StatusError as fault:
        call.fail(fault)
    except asyncio.CancelledError:
        # By the handler's own code, or at the end of the call, where this does nothing.
        call.end(grpc.StatusCode.CANCELLED, "the handler was cancelled by the server")
        raise
    except Exception as error:
        call.fail(_status_of(call, error))


def _status_of(call: "Call", error: Exception) -> StatusError:
    """The status of a handler's error: the one that it has set, else UNKNOWN."""
    context = call.context
    code = context.code()
    if code in _OK:
        logger.error("%s failed", call.headers.path, exc_info=error)
        code = grpc.StatusCode.UNKNOWN
        details = f"unexpected {type(error).__name__}: {error}"
    else:
        # As generated code does for methods that a servicer does not override.
        details = context.details() or str(error)
    return StatusError(code, details, tuple(context.trailing_metadata()))


async def _run_stream(call: "Call", handler: "Handler", request: Any) -> None:
    behaviour: Any = handler.stream_stream or handler.unary_stream
    answers = behaviour(request, call.context)
    if inspect.isawaitable(answers):
        # It writes its answers to the context.
        await answers
    else:
        async with aclosing(answers):
            async for answer in answers:
                await call.send(call.serialized(answer))
                # Not held while the next one is awaited.
                del answer
    call.finish()


def deserialized(message: Message, deserializer: Callable[[Any], Any] | None) -> Any:
    """A message, deserialized; raises StatusError."""
    if deserializer is None:
        return message
    try:
        return deserializer(message)
    except Exception as error:
        raise StatusError(
            grpc.StatusCode.INTERNAL, f"the request cannot be deserialized: {error}"
        ) from error
