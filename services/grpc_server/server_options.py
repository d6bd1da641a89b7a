"""On what terms a server takes calls: the same for all of its connections."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import grpc

from services.contracts.large_buffer import Take
from services.grpc_server.context import Context
from services.grpc_server.limits import Limits
from services.grpc_server.reader import new_read_buffer
from services.grpc_server.request_headers import Metadatum
from services.grpc_server.request_memory import RequestMemory


class UnhandledCall(NamedTuple):
    """A call that ended without its handler, or otherwise than its handler said.

    Attributes:
        code: of its end; CANCELLED when the client gave it up.
        duration_s: since it began.
        is_overload: there was no room for it.
    """

    path: str
    peer: str
    metadata: Sequence[Metadatum]
    code: grpc.StatusCode
    duration_s: float
    is_overload: bool = False


class OverloadStatus(NamedTuple):
    """What a client is told that there is no room for.

    Attributes:
        trailing: metadata behind the status.
    """

    code: grpc.StatusCode = grpc.StatusCode.RESOURCE_EXHAUSTED
    trailing: tuple[Metadatum, ...] = ()


# Refuses a call, by its path and metadata alone, with the context's `abort`.
Check = Callable[[str, Context], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """What calls need of their server.

    Attributes:
        take: gives memory for large requests; None leaves it to Python.
        check: is asked before more of a request is taken than came at once; None takes all.
        on_unhandled: is told of calls whose handlers do not know how they ended.
        memory: of the requests of all connections.
        overload: the status of requests that there is no memory for.
        read_buffer: of all connections.
    """

    limits: Limits
    take: Take | None
    check: Check | None
    on_unhandled: Callable[[UnhandledCall], None]
    memory: RequestMemory
    overload: OverloadStatus
    read_buffer: memoryview = field(default_factory=new_read_buffer)
