"""What all connections of a server share."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import grpc

from services.contracts.transport.large_buffer import Take
from services.grpc_server.calls.context import Context
from services.grpc_server.headers.request_headers import Metadatum
from services.grpc_server.http2.reader import new_read_buffer
from services.grpc_server.http2.unread_answers import UnreadAnswers
from services.grpc_server.limits import Limits
from services.grpc_server.request.request_memory import RequestMemory


class UnhandledCall(NamedTuple):
    """A call that ended without its handler, or with a status that its handler does not see.

    Attributes:
        code: CANCELLED where the client cancelled it.
        duration_s: since its first frame.
        is_overload: there was no memory for it.
    """

    path: str
    peer: str
    metadata: Sequence[Metadatum]
    code: grpc.StatusCode
    duration_s: float
    is_overload: bool = False


class OverloadStatus(NamedTuple):
    """The status of calls that there is no memory for.

    Attributes:
        trailing: metadata of the trailers.
    """

    code: grpc.StatusCode = grpc.StatusCode.RESOURCE_EXHAUSTED
    trailing: tuple[Metadatum, ...] = ()


# Authorizes a call by its path and metadata; refuses it with the context's `abort`.
Check = Callable[[str, Context], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Of one server.

    Attributes:
        take: allocates memory for large requests; None leaves it to Python.
        check: is awaited before a client may send more than the first window of a request; None
            authorizes all.
        on_unhandled: is called with each `UnhandledCall`.
        memory: of the requests of all connections.
        unread: the answers of all connections that wait for their clients.
        overload: the status of calls that there is no memory for.
        read_buffer: of all connections.
    """

    limits: Limits
    take: Take | None
    check: Check | None
    on_unhandled: Callable[[UnhandledCall], None]
    memory: RequestMemory
    unread: UnreadAnswers
    overload: OverloadStatus
    # One for all: reads of an event loop follow each other, and none is kept beyond its parsing.
    read_buffer: memoryview = field(default_factory=new_read_buffer)
