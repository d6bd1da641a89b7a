"""What external models take and give: as their servers say, under the names of this gateway."""

from typing import Any

from services.contracts.external.external_model import ExternalModel
from services.gateway.routing.table import RoutingTable
from services.gateway.upstream.kserve_connection import KserveConnection
from services.pb import open_inference_v2_pb2 as pb


async def external_metadata(table: RoutingTable, model: ExternalModel) -> pb.ModelMetadataResponse:
    """Inputs and outputs; none of an OpenAI server's. Raises as `KserveConnection.ask`."""
    own = pb.ModelMetadataResponse(platform=model.protocol.value)
    answer: pb.ModelMetadataResponse = await _answered(table, model, "ModelMetadata", own)
    answer.name = model.name
    return answer


async def external_config(table: RoutingTable, model: ExternalModel) -> pb.ModelConfigResponse:
    """Its configuration in Triton's terms. Raises as `KserveConnection.ask`."""
    own = pb.ModelConfigResponse(config=pb.ModelConfig(platform=model.protocol.value))
    answer: pb.ModelConfigResponse = await _answered(table, model, "ModelConfig", own)
    answer.config.name = model.name
    return answer


async def _answered(table: RoutingTable, model: ExternalModel, rpc: str, own: Any) -> Any:
    """What the server answers; `own` where its protocol has no such question."""
    (endpoint,) = table.pool(model.name, str(model.version)).endpoints
    connection = endpoint.connection
    return await connection.ask(rpc, type(own)) if isinstance(connection, KserveConnection) else own
