"""The RPCs about server and models; inference itself is in `pipeline/inference.py`.

Each method answers from the routing table or the replicas: errors become statuses in the
handlers around it.
"""

from collections.abc import Iterable
from typing import Final

from services.contracts.external.external_model import ExternalModel
from services.gateway.api.descriptions import config_from_model, metadata_from_model
from services.gateway.api.external_descriptions import external_config, external_metadata
from services.gateway.api.fleet_statistics import FleetStatistics, OwnStatistics
from services.gateway.api.repository import READY, check_repository, index_from_table
from services.gateway.routing.endpoints import EndpointSet
from services.pb import open_inference_v2_pb2 as pb

# Clients switch features on by these names, so only what works is listed.
EXTENSIONS: Final = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "schedule_policy",
    "statistics",
)


class MetadataServicer:
    """Answers from the routing table, which the endpoint set keeps."""

    def __init__(
        self,
        endpoints: EndpointSet,
        server: tuple[str, str],
        own: OwnStatistics,
        extensions: Iterable[str] = EXTENSIONS,
    ) -> None:
        """Answer from what others keep.

        Args:
            endpoints: hold the routing table.
            server: this server's name and version.
            own: gives what this gateway itself counted.
            extensions: of the protocol, that work here.
        """
        self._endpoints = endpoints
        self._server = server
        self._statistics = FleetStatistics(own)
        self._extensions = sorted(extensions)

    async def server_live(self, _: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        """Always true: it answers."""
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, _: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        """Ready when every model that the fleet shall serve can be asked, and one exists."""
        table = self._endpoints.table
        return pb.ServerReadyResponse(ready=table.is_every_model_ready())

    async def server_metadata(self, _: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        """Name, version and what works beyond the core protocol."""
        name, version = self._server
        return pb.ServerMetadataResponse(name=name, version=version, extensions=self._extensions)

    async def model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        """Whether it can be asked now; false, not an error, for unknown models.

        True of an on-demand model that is not loaded, as of ModelMesh's in STANDBY: a client that
        waits until it is ready would never ask for it.
        """
        table = self._endpoints.table
        return pb.ModelReadyResponse(ready=table.would_answer(request.name, request.version))

    async def model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        """Inputs and outputs of a version, and all its model's versions.

        Raises NotFoundError or InvalidRequestError, as `RoutingTable.served`.
        """
        table = self._endpoints.table
        served = table.served(request.name, request.version)
        versions = sorted(table.view.models[request.name])
        if not isinstance(served.document, ExternalModel):
            return metadata_from_model(served.document, versions)
        found = await external_metadata(table, served.document)
        found.versions[:] = map(str, versions)
        return found

    async def model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        """The model's configuration in Triton's terms.

        Raises NotFoundError or InvalidRequestError, as `RoutingTable.served`.
        """
        table = self._endpoints.table
        document = table.served(request.name, request.version).document
        if isinstance(document, ExternalModel):
            return await external_config(table, document)
        pool = table.pools.get((document.name, str(document.version)))
        engines = [endpoint.replica.engine for endpoint in pool.endpoints] if pool else []
        return pb.ModelConfigResponse(config=config_from_model(document, engines))

    async def model_statistics(
        self, request: pb.ModelStatisticsRequest
    ) -> pb.ModelStatisticsResponse:
        """Counts and times, added up over the replicas.

        Raises NotFoundError or InvalidRequestError, as `RoutingTable.version_number`.
        """
        table = self._endpoints.table
        return await self._statistics.answer(table, request.name, request.version)

    async def repository_index(
        self, request: pb.RepositoryIndexRequest
    ) -> pb.RepositoryIndexResponse:
        """Every version of every model, with its state and why it is not ready.

        Raises UnsupportedFeatureError for another repository.
        """
        check_repository(request.repository_name)
        index = index_from_table(self._endpoints.table)
        return pb.RepositoryIndexResponse(
            models=(each for each in index if each.state == READY or not request.ready)
        )
