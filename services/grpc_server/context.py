"""What a handler learns of its call, and how it refuses it."""

from collections.abc import Sequence
from typing import NoReturn, Protocol

import grpc

from services.grpc_server.request_headers import Metadatum


class Context(Protocol):
    """The part of `grpc.aio.ServicerContext` that handlers use here."""

    def peer(self) -> str:
        """Who calls: `ipv4:127.0.0.1:50000`."""
        ...

    def invocation_metadata(self) -> Sequence[Metadatum]:
        """What the client sent beside its request."""
        ...

    def time_remaining(self) -> float | None:
        """Seconds the client still waits, never negative; None when it set no deadline."""
        ...

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[Metadatum] = ()
    ) -> NoReturn:
        """End the call with a status; raises what ends the handler."""
        ...


class AbortError(Exception):
    """Ends a handler that has refused its call; nobody else catches it."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: Sequence[Metadatum]) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code, self.details, self.trailing = code, details, trailing
