"""An HTTP/2 server of the tree that is first on PYTHONPATH.

Says its port and that with TLS, and serves until killed.
"""

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc
import uvloop

from services.gateway.api.reflection import enable_reflection
from services.grpc_server.limits import Limits
from services.grpc_server.server import GrpcServer
from services.pb import open_inference_v2_pb2 as pb
from tests.certificates import Authority

# As a gateway with 8 GiB of memory has it; and more connections than a crowd has, so that there is
# one for the polite client.
LIMITS: Final = Limits(max_upload_bytes=4 << 30, max_connections=20_000)


async def echo(body: bytes, _: Any) -> bytes:
    """The request."""
    return body


async def drop(_: bytes, __: Any) -> bytes:
    """Nothing."""
    return b""


async def hold(body: bytes, _: Any) -> bytes:
    """Waits until the call is given up."""
    await asyncio.Event().wait()
    return body


async def gated(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    """Takes nothing."""
    await asyncio.Event().wait()
    async for body in requests:
        yield body


async def _refuse(context: Any, error: Exception) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))


def _tls() -> ssl.SSLContext:
    with tempfile.TemporaryDirectory() as folder:
        files = Authority(Path(folder)).sign("server")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.cert, files.key)
    context.set_alpn_protocols(["h2"])
    return context


async def main() -> None:
    """Serve."""
    server = GrpcServer(LIMITS)
    server.add_registered_method_handlers(
        "test.Probe",
        {
            "Echo": grpc.unary_unary_rpc_method_handler(echo),
            "Drop": grpc.unary_unary_rpc_method_handler(drop),
            "Hold": grpc.unary_unary_rpc_method_handler(hold),
            "Gated": grpc.stream_stream_rpc_method_handler(gated),
        },
    )
    enable_reflection(server, pb.DESCRIPTOR.pool, [], _refuse)
    port = await server.start("127.0.0.1", 0)
    print(port, await server.start("127.0.0.1", 0, tls=_tls()), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
