"""Streams that idle between two requests, behind all that stands before inference."""

import gc
import tracemalloc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

from services.gateway.access.guard import guarded
from services.gateway.api.handlers import offered_handlers
from services.gateway.api.status_codes import StatusTable
from services.pb import open_inference_v2_pb2 as pb
from tests.integration.grpc_server.probe import soon

if TYPE_CHECKING:
    from services.gateway.access.gate import Gate
    from services.gateway.pipeline.inference import InferenceHandler
    from tests.integration.grpc_server.conftest import Host

MIB = 1 << 20
NUM_STREAMS = 5
REQUEST = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(MIB)]).SerializeToString()
# Where a request that comes in parts lies, and where an answer is made.
LARGE_FILES = ("large_buffer.py", "streaming.py")


class _Gate:
    async def caller_of(self, _: object) -> Any:
        """Somebody who may ask anything."""
        return SimpleNamespace(name="somebody", require=lambda *_: None)


class _Inference:
    async def answer(self, _: object) -> bytes:
        """A large one."""
        return bytes(2 * MIB)


def held_bytes() -> int:
    """What was taken for requests and answers and is still there."""
    gc.collect()
    traces = tracemalloc.take_snapshot().traces
    return sum(each.size for each in traces if each.traceback[0].filename.endswith(LARGE_FILES))


async def test_one_that_idles_holds_neither_its_last_request_nor_its_answer(host: "Host") -> None:
    statuses, anything = StatusTable(), Mock()
    gate, inference = cast("Gate", _Gate()), cast("InferenceHandler", _Inference())
    handlers = guarded(offered_handlers(inference, anything, statuses), gate, statuses, anything)
    name = "ModelStreamInfer"
    await host.serve(methods={name: handlers[name]})
    channel = host.channel()
    tracemalloc.start()
    try:
        streams = [channel.stream_stream(f"/test.More/{name}")() for _ in range(NUM_STREAMS)]
        for stream in streams:
            await stream.write(REQUEST)
        for stream in streams:
            assert len(await soon(stream.read())) > 2 * MIB
        # Each waits for its next request by now; it would be seen to hold five times as much.
        assert held_bytes() < MIB
    finally:
        tracemalloc.stop()
    for stream in streams:
        stream.cancel()
