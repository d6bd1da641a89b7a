"""The no-op model as a Ray Serve deployment's class."""

from services.pb.open_inference_v2_pb2 import ModelInferRequest, ModelInferResponse
from tests.benchmarks.dataplane.payloads import response_of


class Noop:
    """Answers ModelInfer; Serve's proxy calls the method of the RPC's name."""

    async def ModelInfer(self, request: ModelInferRequest) -> ModelInferResponse:  # noqa: N802
        """The first values of the tensor."""
        return response_of(request)
