"""What a handler is given of its call: all that `grpc.aio.ServicerContext` has."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio

from services.grpc_server.calls.context import AbortError, Context
from services.grpc_server.headers.request_headers import Metadatum

if TYPE_CHECKING:
    from services.grpc_server.calls.call import Call


class ServicerContext:
    """Of one call. Answers are never compressed; certificates of clients are not exposed."""

    __slots__ = ("_call", "_code", "_details", "_trailing", "is_plain")

    def __init__(self, call: "Call") -> None:
        """Nothing is set.

        Attributes:
            is_plain: no status, details or trailing metadata are set.
        """
        self._call = call
        self.is_plain = True
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._trailing: Sequence[Metadatum] = ()

    # ---- the client

    def peer(self) -> str:
        """The client's address: `ipv4:127.0.0.1:50000`."""
        return self._call.peer

    def invocation_metadata(self) -> Sequence[Metadatum]:
        """Metadata of the client."""
        return self._call.headers.metadata

    def time_remaining(self) -> float | None:
        """Seconds until the deadline; None without one."""
        return self._call.time_remaining()

    def peer_identities(self) -> None:
        """None: certificates are verified and not exposed."""
        return

    def peer_identity_key(self) -> None:
        """None, as `peer_identities`."""
        return

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """Nothing, as `peer_identities`."""
        return {}

    # ---- the status

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[Metadatum] = ()
    ) -> NoReturn:
        """End the call with a status; never returns.

        Args:
            code: the status.
            details: for `grpc-message`.
            trailing_metadata: replaces what `set_trailing_metadata` was given, unless empty.

        Raises:
            AbortError: always; it ends the handler.
        """
        raise AbortError(code, details, trailing_metadata or self._trailing)

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """As `abort`."""
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    def set_code(self, code: grpc.StatusCode) -> None:
        """Of the status once the handler returns."""
        self._code = code
        self.is_plain = False

    def set_details(self, details: str) -> None:
        """Of the status once the handler returns."""
        self._details = details
        self.is_plain = False

    def set_trailing_metadata(self, trailing_metadata: Sequence[Metadatum]) -> None:
        """Send this with the status."""
        self._trailing = tuple(trailing_metadata)
        self.is_plain = False

    def code(self) -> grpc.StatusCode | None:
        """What was set."""
        return self._code

    def details(self) -> str:
        """What was set."""
        return self._details

    def trailing_metadata(self) -> Sequence[Metadatum]:
        """What was set."""
        return self._trailing

    # ---- the answer

    async def send_initial_metadata(self, initial_metadata: Sequence[Metadatum]) -> None:
        """Send response headers; raises RuntimeError if they were sent."""
        self._call.begin_answer(tuple(initial_metadata))

    async def read(self) -> Any:
        """The next request of a stream, or `grpc.aio.EOF`."""
        try:
            return await anext(self._call.requests)
        except StopAsyncIteration:
            return grpc.aio.EOF  # type: ignore[attr-defined] # stubs lack it

    async def write(self, message: Any) -> None:
        """Send a message of a stream."""
        await self._call.send(self._call.serialized(message))

    # Accepted, as gRPC's handlers may call them: answers of tensors hardly become smaller.

    def set_compression(self, compression: grpc.Compression) -> None:
        """Ignored."""

    def disable_next_message_compression(self) -> None:
        """Ignored."""

    # ---- the end

    def cancelled(self) -> bool:
        """Whether the call ended before its handler did."""
        return self._call.is_cancelled

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._call.is_ended

    def add_done_callback(self, callback: Callable[["ServicerContext"], None]) -> None:
        """Call it with this context at the end of the call."""
        if self._call.is_ended:
            callback(self)
        else:
            callbacks = self._call.on_end = self._call.on_end or []
            callbacks.append(lambda: callback(self))

    def hold(self) -> Callable[[], None] | None:
        """See `hold_request`."""
        upload = self._call.upload
        return upload.hold() if upload is not None else None

    def hold_answer(self, num_bytes: int) -> bool:
        """See `counter_of_answers`."""
        return self._call.hold_answer(num_bytes)


def hold_request(context: Context) -> Callable[[], None] | None:
    """Keep the memory reserved of the request that a stream's handler read last.

    Without it, a handler that reads the next request is taken to be done with the one before.

    Returns:
        What is called once the request is no longer in memory; None where nothing is reserved, as
        for small requests and on gRPC's own server.
    """
    # Contexts of grpc.aio have no such method.
    hold = getattr(context, "hold", None)
    return hold() if hold is not None else None


def counter_of_answers(context: Context) -> Callable[[int], bool]:
    """What counts bytes of answers that a stream's handler holds until it sends them.

    The handler counts all of them down again, by negative numbers.

    Returns:
        Counts so many bytes more, or fewer; False where so many more may not wait. On gRPC's own
        server nothing is counted.
    """
    count: Callable[[int], bool] = getattr(context, "hold_answer", lambda _: True)
    return count
