"""An HTTP/2 server of the tree that is first on PYTHONPATH: says its port, serves until killed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from services.grpc_server.server import GrpcServer


async def echo(body: bytes, _: Any) -> bytes:
    """The request."""
    return body


async def hold(body: bytes, _: Any) -> bytes:
    """Waits until the call is given up."""
    await asyncio.Event().wait()
    return body


async def gated(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    """Takes nothing."""
    await asyncio.Event().wait()
    async for body in requests:
        yield body


async def main() -> None:
    """Serve."""
    server = GrpcServer()
    server.add_registered_method_handlers(
        "test.Probe",
        {
            "Echo": grpc.unary_unary_rpc_method_handler(echo),
            "Hold": grpc.unary_unary_rpc_method_handler(hold),
            "Gated": grpc.stream_stream_rpc_method_handler(gated),
        },
    )
    print(await server.start("127.0.0.1", 0), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
