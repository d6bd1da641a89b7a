"""What external servers send, how far ahead, and how it is quoted."""

import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from services.contracts.external.dial import kserve_channel, kserve_path, one_line
from services.contracts.external.external_model import ExternalModel

PART = 1 << 20


@pytest.mark.parametrize(
    ("said", "quoted"),
    [
        ("one\r\n\ttwo  three ", "one two three"),
        ("x" * 300, "x" * 200 + "..."),
        ("\x1b[2J\x00\ud800\u202e", "\ufffd[2J\ufffd\ufffd\ufffd"),
        (None, "None"),
    ],
)
def test_a_message_is_short_in_one_line_and_text(said: object, quoted: str) -> None:
    assert one_line(said) == quoted


def test_no_object_is_made_of_each_word_of_a_long_message() -> None:
    said = "ab " * 300_000
    tracemalloc.start()
    assert len(one_line(said)) == 203
    assert tracemalloc.get_traced_memory()[1] < 300_000
    tracemalloc.stop()


class _Pouring(grpc.GenericRpcHandler):
    """Streams as many MiB as its client lets it; any other RPC is answered at once."""

    def __init__(self) -> None:
        self.num_sent = 0

    def service(self, call: grpc.HandlerCallDetails) -> Any:
        if call.method == kserve_path("ModelStreamInfer"):
            return grpc.stream_stream_rpc_method_handler(self._pour)
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _pour(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        del requests, context
        while True:
            yield bytes(PART)
            self.num_sent += 1

    async def _answer(self, request: bytes, context: Any) -> bytes:
        del context
        return request


async def test_a_stream_that_is_not_read_is_not_sent_ahead() -> None:
    server, pouring = grpc.aio.server(), _Pouring()
    server.add_generic_rpc_handlers((pouring,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    model = ExternalModel(name="m", version=1, url=f"grpc://127.0.0.1:{port}", remote_name="m")
    try:
        async with kserve_channel(model, 2 * PART) as channel:
            stream = channel.stream_stream(kserve_path("ModelStreamInfer"))()
            for _ in range(64):  # the more is read, the larger is the window that gRPC estimates
                assert len(await stream.read()) == PART
            # The answers to these come in order behind what the server may send.
            for _ in range(200):
                await channel.unary_unary(kserve_path("ServerLive"))(b"")
            assert pouring.num_sent <= 64 + 2
            stream.cancel()
    finally:
        await server.stop(None)
