"""What handlers are given of their calls, by gRPC's own type, and how they end them."""

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from services.grpc_server.headers.request_headers import Metadatum

# Handlers serve on grpc.aio too; calls of this server have `servicer_context.ServicerContext`.
Context = grpc.aio.ServicerContext[Any, Any]


class AbortError(Exception):
    """Ends the handler of a call that it has aborted."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: Sequence[Metadatum]) -> None:
        """Keep what the client gets.

        Args:
            code: status of the call.
            details: text of the status.
            trailing: metadata that is sent with it.
        """
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details
        self.trailing = trailing
