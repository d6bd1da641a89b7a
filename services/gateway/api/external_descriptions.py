"""What external models take and give: as their servers say, under the names of this gateway."""

from typing import Any

from services.contracts.external.external_model import ExternalModel, ServerProtocol
from services.gateway.routing.table import RoutingTable
from services.pb import open_inference_v2_pb2 as pb


async def external_metadata(table: RoutingTable, model: ExternalModel) -> pb.ModelMetadataResponse:
    """Inputs and outputs; none of an OpenAI server's. Raises as `KserveConnection.ask`.

    Args:
        table: has the connection.
        model: to be described.
    """
    answer = pb.ModelMetadataResponse(platform=model.protocol.value)
    if model.protocol is ServerProtocol.KSERVE:
        request = pb.ModelMetadataRequest(name=model.remote_name, version=model.remote_version)
        answer = await _asked(table, model, "ModelMetadata", request, pb.ModelMetadataResponse)
    answer.name = model.name
    return answer


async def external_config(table: RoutingTable, model: ExternalModel) -> pb.ModelConfigResponse:
    """Its configuration in Triton's terms. Raises as `KserveConnection.ask`.

    Args:
        table: has the connection.
        model: to be described.
    """
    config = pb.ModelConfig(platform=model.protocol.value, backend="external")
    answer = pb.ModelConfigResponse(config=config)
    if model.protocol is ServerProtocol.KSERVE:
        request = pb.ModelConfigRequest(name=model.remote_name, version=model.remote_version)
        answer = await _asked(table, model, "ModelConfig", request, pb.ModelConfigResponse)
    answer.config.name = model.name
    return answer


async def _asked(
    table: RoutingTable, model: ExternalModel, rpc: str, request: Any, answer: Any
) -> Any:
    from services.gateway.upstream.kserve_connection import KserveConnection

    (endpoint,) = table.pool(model.name, str(model.version)).endpoints
    connection = endpoint.connection
    assert isinstance(connection, KserveConnection)
    return await connection.ask(rpc, request, answer)
