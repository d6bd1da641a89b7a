"""RepositoryModelLoad and Unload: the controller has a model served or withdrawn, for good."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message

from services.contracts.errors import (
    InvalidRequestError,
    NotFoundError,
    NotReadyError,
    SmeltError,
    UnsupportedFeatureError,
)
from services.contracts.external.external_model import ExternalModel
from services.contracts.security.fleet_dialer import FleetDialer
from services.gateway.access.caller import CALLER_NAME
from services.gateway.api.descriptions import config_from_model
from services.gateway.api.repository import check_repository
from services.gateway.routing.endpoints import EndpointSet
from services.gateway.routing.table import RoutingTable
from services.pb import fleet_v1_pb2 as fleet
from services.pb import open_inference_v2_pb2 as pb
from services.pb.fleet_v1_pb2_grpc import FleetControlStub

# A change of the fleet is here within one stream message; then a connection opens.
FOLLOW_TIMEOUT_S: Final = 60.0
# The controller itself waits for a model for ten minutes.
SET_SERVED_TIMEOUT_S: Final = 660.0
_MAX_CONFIG_DEPTH: Final = 32
_ERROR_BY_CODE: Final[Mapping[grpc.StatusCode, type[SmeltError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedFeatureError,
}
_Parameters = Mapping[str, pb.ModelRepositoryParameter]


class ModelControl:
    """Loads and unloads models of the store, through the controller.

    Attributes:
        methods: what answers each of its RPCs, by name.
        followers: what returns once this process sees what the RPC of that name changed.
    """

    def __init__(self, controller: str, endpoints: EndpointSet, dialer: FleetDialer) -> None:
        """Reach the controller with each call.

        Args:
            controller: its address, `host:port`.
            endpoints: show when this gateway can send requests to a model.
            dialer: opens connections to the controller.
        """
        self._controller = controller
        self._endpoints = endpoints
        self._dialer = dialer
        self.methods: dict[str, Callable[[Any], Awaitable[Message]]] = {
            "RepositoryModelLoad": self.load,
            "RepositoryModelUnload": self.unload,
        }
        self.followers: dict[str, Callable[[Any], Awaitable[None]]] = {
            "RepositoryModelLoad": self.follow_load,
            "RepositoryModelUnload": self.follow_unload,
        }

    async def load(self, request: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        """Return once this gateway can send the model requests; one that is loaded already is.

        Raises:
            NotFoundError: the store has no such model.
            NotReadyError: it cannot be served, and why; or the controller is away.
            InvalidRequestError: parameter `config` is not a ModelConfig in JSON.
            UnsupportedFeatureError: files in the request, or a configuration other than the
                model's own.
        """
        name = request.model_name
        check_repository(request.repository_name)
        for parameter, value in request.parameters.items():
            if parameter != "config":
                raise UnsupportedFeatureError(
                    f"load model '{name}': parameter '{parameter}' is not offered; models come "
                    "from the store alone, publish this one with `smelt models add`"
                )
            self._check_config(name, value.string_param)
        reply = await self._set_served(name, is_served=True)
        if not reply.is_ready:
            raise NotReadyError(f"model '{name}' cannot be served now: {reply.reason}")
        await self.follow_load(request)
        return pb.RepositoryModelLoadResponse()

    def _check_config(self, name: str, text: str) -> None:
        """Refuse a configuration that is not the one of the model; a part of it may be named."""
        table = self._endpoints.table
        wanted = _config_from_json(name, text)
        if name not in table.view.models:
            return  # the controller says so
        document = table.served(name, "").document
        if isinstance(document, ExternalModel):
            raise UnsupportedFeatureError(
                f"load model '{name}': it is external, and its configuration is its server's; "
                "omit config"
            )
        own = config_from_model(document, ())
        for field, value in wanted.ListFields():
            found = getattr(own, field.name)
            if value != found:
                raise UnsupportedFeatureError(
                    f"load model '{name}': config.{field.name}: expected {_text(found)}, as its "
                    f"recipe says, got {_text(value)}; a configuration belongs to a version: "
                    "change the recipe and publish one with `smelt models add`"
                )

    async def follow_load(self, request: pb.RepositoryModelLoadRequest) -> None:
        """Return once this process has a replica of a loaded model; raises NotReadyError."""
        name = request.model_name
        await self._until(name, lambda table: table.is_ready(name, ""))

    async def unload(
        self, request: pb.RepositoryModelUnloadRequest
    ) -> pb.RepositoryModelUnloadResponse:
        """Return once this gateway sends the model no more; what runs is answered.

        Raises:
            NotFoundError, NotReadyError: as `load`.
            InvalidRequestError: an unknown parameter.
        """
        name = request.model_name
        check_repository(request.repository_name)
        _check_unload_parameters(name, request.parameters)
        await self._set_served(name, is_served=False)
        await self.follow_unload(request)
        return pb.RepositoryModelUnloadResponse()

    async def follow_unload(self, request: pb.RepositoryModelUnloadRequest) -> None:
        """Return once this process sends a model that was unloaded no more; raises likewise."""
        name = request.model_name
        await self._until(name, lambda table: not table.is_ready(name, ""))

    async def _set_served(self, name: str, *, is_served: bool) -> fleet.SetServedReply:
        request = fleet.SetServedRequest(
            model_name=name, is_served=is_served, who=CALLER_NAME.get()
        )
        async with self._dialer.aio_channel(self._controller) as channel:
            try:
                metadata = self._dialer.metadata()
                return await FleetControlStub(channel).SetServed(
                    request, metadata=metadata, timeout=SET_SERVED_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise NotReadyError(
                        f"model '{name}': the controller did not answer within "
                        f"{SET_SERVED_TIMEOUT_S:g} s; the repository index shows the result"
                    ) from error
                kind = _ERROR_BY_CODE.get(error.code(), NotReadyError)
                raise kind(
                    error.details() or f"the controller answers {error.code().name}"
                ) from error

    async def _until(self, name: str, is_so: Callable[[RoutingTable], bool]) -> None:
        try:
            async with asyncio.timeout(FOLLOW_TIMEOUT_S):
                while not is_so(self._endpoints.table):
                    await self._endpoints.changed.wait()
        except TimeoutError as error:
            raise NotReadyError(
                f"the controller applied it, but this gateway did not get the state of '{name}' "
                f"within {FOLLOW_TIMEOUT_S:g} s; see the repository index"
            ) from error


def _config_from_json(name: str, text: str) -> pb.ModelConfig:
    try:
        return json_format.Parse(text, pb.ModelConfig(), max_recursion_depth=_MAX_CONFIG_DEPTH)
    except (json_format.ParseError, RecursionError) as error:
        raise InvalidRequestError(
            f"load model '{name}': parameter 'config': expected a ModelConfig in JSON: {error}"
        ) from error


def _text(value: object) -> str:
    return " ".join(str(value).split()) or "none"


def _check_unload_parameters(name: str, parameters: _Parameters) -> None:
    """There are no ensembles here, so nothing depends on a model: the one parameter is moot."""
    for parameter, value in parameters.items():
        is_known = parameter == "unload_dependents"
        if not is_known or value.WhichOneof("parameter_choice") != "bool_param":
            raise InvalidRequestError(
                f"unload model '{name}': expected no parameter but 'unload_dependents', a bool; "
                f"got '{parameter}'"
            )
