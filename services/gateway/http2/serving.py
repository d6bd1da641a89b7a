"""Runs the handler of a call: requests in, answers or a status out."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc

from services.gateway.http2.context import AbortError
from services.gateway.http2.messages import Message, MessageFault, Packed

if TYPE_CHECKING:
    from services.gateway.http2.call import Call

    Handler = grpc.RpcMethodHandler[Any, Any]

logger = logging.getLogger(__name__)


class Requests:
    """The messages that a client streams, for the handler to iterate over."""

    def __init__(self, call: "Call", deserializer: Callable[[Any], Any] | None) -> None:
        self._call, self._deserializer = call, deserializer

    def __aiter__(self) -> "Requests":
        return self

    async def __anext__(self) -> Any:
        """The next one; raises as `Call.next_message`."""
        return deserialized(await self._call.next_message(), self._deserializer)


async def serve(call: "Call", handler: "Handler", given: "Message | Packed | Requests") -> None:
    """Run a call's handler on its request, or on its stream of them; its end is the call's."""
    try:
        if isinstance(given, Requests):
            request: Any = given
        else:
            upload = call.upload
            if upload is not None:
                # Before it is unpacked: it may be nobody's.
                await upload.checked()
            if isinstance(given, Packed):
                assert upload is not None
                given = await upload.unpacked(given)
            request = deserialized(given, handler.request_deserializer)
        call.is_handled = True
        if handler.response_streaming:
            await _serve_stream(call, handler, request)
        else:
            behaviour: Any = handler.stream_unary or handler.unary_unary
            answer = await behaviour(request, call)
            serializer = handler.response_serializer
            call.answer(answer if serializer is None else serializer(answer))
    except AbortError as abort:
        call.end(abort.code, abort.details, abort.trailing)
    except MessageFault as fault:
        call.fail(fault)
    except asyncio.CancelledError:
        call.end(grpc.StatusCode.CANCELLED, "the server stopped working on this call")
        raise
    except Exception as error:
        logger.exception("%s failed", call.start.path)
        words = f"unexpected {type(error).__name__}: {error}"
        call.fail(MessageFault(grpc.StatusCode.UNKNOWN, words))


async def _serve_stream(call: "Call", handler: "Handler", request: Any) -> None:
    behaviour: Any = handler.stream_stream or handler.unary_stream
    serializer = handler.response_serializer
    async with aclosing(behaviour(request, call)) as answers:
        async for answer in answers:
            await call.send(answer if serializer is None else serializer(answer))
            # Whoever waits for the next one holds nothing of this.
            del answer
    call.finish()


def deserialized(message: Message, deserializer: Callable[[Any], Any] | None) -> Any:
    """What a message means; raises MessageFault."""
    if deserializer is None:
        return message
    try:
        return deserializer(message)
    except Exception as error:
        raise MessageFault(
            grpc.StatusCode.INTERNAL, f"the request cannot be read: {error}"
        ) from error
