"""The largest messages that gRPC has, in and out, and those that are a byte larger.

    python -m tests.benchmarks.dataplane.largest

A real gateway, a data port and a client process of grpc: 2 GiB - 1 in a request, then in an
answer; each with a byte more is to be refused with RESOURCE_EXHAUSTED. It takes a minute and 10 GiB
of memory, so it is no test.
"""

import asyncio
import resource
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import grpc

from services.contracts.kserve.protobuf_wire import varint_bytes
from services.contracts.transport.frames import InferFrame
from services.gateway.settings import MAX_MESSAGE_BYTES
from services.pb import open_inference_v2_pb2 as pb
from tests.integration.gateway.conftest import Fleet, model_version

_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_RAW_CONTENTS_TAG = b"\x3a"
_SMALL_BYTES = 16
_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def _body(num_bytes: int) -> bytes:
    """A request whose message has so many bytes; a small one for 0."""
    request = pb.ModelInferRequest(model_name="echo")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    head = request.SerializeToString()
    # A size that large has five bytes.
    left = num_bytes - len(head) - 1 - 5 if num_bytes else _SMALL_BYTES
    return b"".join((head, _RAW_CONTENTS_TAG, varint_bytes(left), bytes(left)))


def ask(url: str, num_bytes: int) -> None:
    """Ask once, as a process of its own, and print what came."""
    body, began_s = _body(num_bytes), time.monotonic()
    with grpc.insecure_channel(url, _OPTIONS) as channel:
        try:
            said = f"{len(channel.unary_unary(_METHOD)(body, timeout=300))} bytes"
        except grpc.RpcError as error:
            said = f"{error.code().name}: {error.details()}"
    print(f"asked with {len(body)} bytes: {said}, {time.monotonic() - began_s:.1f} s", flush=True)


async def _serve_and_ask(folder: Path, stack: AsyncExitStack) -> None:
    fleet = Fleet(stack, folder)
    await fleet.controller.start()
    stack.push_async_callback(fleet.controller.stop)
    await fleet.start_gateway(max_upload_bytes=2 * MAX_MESSAGE_BYTES)
    fleet.add_model(model_version())
    replica = await fleet.add_replica("r1")
    await fleet.until_ready("r1")
    sizes = [0, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES + 1]

    async def answer(_: InferFrame) -> bytes:
        return bytes(sizes.pop(0))

    replica.answer = answer
    for num_bytes in (MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES + 1, 0, 0):
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __spec__.name, fleet.url, str(num_bytes)
        )
        await client.wait()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"gateway and replica, which are one process here: at most {peak_mib} MiB")


async def main() -> None:
    """Serve, and ask four times."""
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            await _serve_and_ask(Path(folder), stack)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        ask(sys.argv[1], int(sys.argv[2]))
    else:
        asyncio.run(main())
