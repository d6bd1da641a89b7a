"""Reading bodies within the memory that requests share."""

from typing import Any

import grpc
import pytest

from services.gateway.http.bodies import Bodies
from services.gateway.http.http_call import HttpCall
from services.grpc_server.http2.unread_answers import UnreadAnswers
from services.grpc_server.limits import SMALL_BYTES, Limits
from services.grpc_server.request.messages import StatusError
from services.grpc_server.request.request_memory import RequestMemory
from services.grpc_server.server_options import OverloadStatus, ServerOptions


async def test_a_large_body_that_memory_stays_full_for_is_refused_as_overload() -> None:
    """Not as a deadline that passed: the client has set none."""
    memory = RequestMemory(max_reserved=2 * SMALL_BYTES, max_counted=4 * SMALL_BYTES)
    other = memory.reserve(2 * SMALL_BYTES, lambda: None)
    assert other.is_granted
    limits = Limits(max_request_age_s=0.02)
    options = ServerOptions(
        limits=limits,
        take=None,
        check=None,
        on_unhandled=lambda _: None,
        memory=memory,
        unread=UnreadAnswers(1 << 30),
        overload=OverloadStatus(),
    )
    bodies = Bodies(options)
    piece = {"type": "http.request", "body": bytes(SMALL_BYTES), "more_body": True}

    async def receive() -> dict[str, Any]:
        return piece

    scope = {"method": "POST", "path": "/", "client": ("127.0.0.1", 1), "headers": []}
    call = HttpCall(scope, receive)
    with pytest.raises(StatusError, match="all of the upload memory") as found:
        await bodies.read(call, 4 * SMALL_BYTES)
    assert found.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert found.value.is_overload
    for released in call.on_end:
        released()
    assert memory.num_waiting == memory.num_counted == 0
