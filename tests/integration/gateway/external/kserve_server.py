"""A server that speaks KServe v2 over gRPC, as a test wants it; it answers what it is asked."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from services.pb import open_inference_v2_pb2 as pb
from tests.certificates import CertificateFiles

SERVICE = "inference.GRPCInferenceService"


class KserveServer:
    """Its RPCs, and its port.

    Attributes:
        name: of its model.
        fault: what is wrong with it.
        step: is waited for before each answer of a stream but the first, where a test sets it.
        gone: set when a client left in the middle of a stream.
        num_refused: requests that it had no time for.
        metadata: of the last inference.
        remaining_s: that its last stream may take; None without a deadline.
    """

    def __init__(self) -> None:
        self.name = "resnet"
        self.fault = ""
        self.step: asyncio.Queue[None] | None = None
        self.gone = asyncio.Event()
        self.num_refused = 0
        self.metadata: dict[str, Any] = {}
        self.remaining_s: float | None = 0.0
        self.port = 0
        self.server = grpc.aio.server()

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def handlers(self) -> dict[str, Any]:
        """By RPC."""
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "ModelMetadata": unary(self._metadata),
            "ModelReady": unary(self._ready),
            # As a stream: it may end without an answer.
            "ModelInfer": grpc.unary_stream_rpc_method_handler(self._infer_or_end),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._stream),
        }

    async def _metadata(self, body: bytes, _: Any) -> bytes:
        if self.fault == "silent":
            await asyncio.Event().wait()
        if self.fault == "other":
            return b"\xff"
        tensor = pb.ModelMetadataResponse.TensorMetadata(name="x", datatype="FP32", shape=[-1, 4])
        answer = pb.ModelMetadataResponse(name=self.name, platform="test", inputs=[tensor])
        return answer.SerializeToString()

    async def _ready(self, body: bytes, _: Any) -> bytes:
        return pb.ModelReadyResponse(ready=self.fault != "unready").SerializeToString()

    async def _infer_or_end(self, body: bytes, context: Any) -> AsyncIterator[bytes]:
        if self.fault != "mute":
            yield await self._infer(body, context)

    async def _infer(self, body: bytes, context: Any) -> bytes:
        if self.fault == "stuck":
            await asyncio.Event().wait()
        if self.fault == "overloaded":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
        if self.fault == "unavailable":
            self.num_refused += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Cancelling all calls")
        request = pb.ModelInferRequest.FromString(body)
        self.metadata = dict(context.invocation_metadata())
        if not request.inputs:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no inputs")
        return self._answer(request).SerializeToString()

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Three answers for each request, of a decoupled model."""
        self.remaining_s = context.time_remaining()
        try:
            async for body in requests:
                if self.fault == "stuck":
                    await asyncio.Event().wait()
                if self.fault == "other":
                    yield b"\x0a\xff"
                request = pb.ModelInferRequest.FromString(body)
                for number in range(3):
                    if number and self.step is not None:
                        await self.step.get()
                    if number and self.fault == "vanishes":
                        self.stopping = asyncio.ensure_future(self.server.stop(0))
                        await asyncio.Event().wait()
                    if number and self.fault == "dies":
                        await context.abort(grpc.StatusCode.INTERNAL, "out of memory")
                    answer = self._answer(request, number)
                    answer.parameters["triton_final_response"].bool_param = number == 2
                    yield pb.ModelStreamInferResponse(infer_response=answer).SerializeToString()
        except asyncio.CancelledError:
            self.gone.set()
            raise

    def _answer(self, request: Any, number: int = 1) -> Any:
        assert (request.model_name, request.model_version) == (self.name, "")
        answer = pb.ModelInferResponse(
            model_name=self.name,
            model_version="7",
            id=request.id,
            raw_output_contents=request.raw_input_contents,
        )
        answer.outputs.add(name="y", datatype="FP32", shape=request.inputs[0].shape)
        if self.fault == "large" and number:
            answer.parameters["pad"].string_param = "x" * 5000
        return answer


@contextlib.asynccontextmanager
async def kserve_server(
    certificate: CertificateFiles | None = None,
) -> AsyncIterator[KserveServer]:
    """One that listens, in plain text or with TLS."""
    asked = KserveServer()
    server = asked.server
    handler = grpc.method_handlers_generic_handler(SERVICE, asked.handlers())
    server.add_generic_rpc_handlers((handler,))
    if certificate:
        pair = (certificate.key.read_bytes(), certificate.cert.read_bytes())
        asked.port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    else:
        asked.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield asked
    finally:
        await server.stop(0)
