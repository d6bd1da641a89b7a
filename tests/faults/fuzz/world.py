"""A whole fleet in this process: real controller service, replica, gateway, and raw channels."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from services.contracts.model.recipe import InputRecipe, InputRole, Recipe
from services.contracts.registry.registry import Registry
from services.contracts.security.fleet_security import FleetSecuritySettings, FleetTls, FleetTokens
from services.controller.api.fleet_control import FleetControl
from services.controller.api.fleet_port import listen, token_guards
from services.controller.api.fleet_state import FleetState
from services.controller.api.model_loading import Serving
from services.gateway.server import GatewayServer
from services.gateway.settings import GatewaySettings
from services.pb import fleet_v1_pb2 as fleet
from services.pb import fleet_v1_pb2_grpc as fleet_grpc
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.catalog import GATEWAY_METRICS
from services.telemetry.prometheus_recorder import PrometheusRecorder
from services.telemetry.recorder import NullRecorder
from tests.integration.replica.published import NUM_ROWS, RECIPE, Shelf

_START_S = 60.0
# What no engine may look up is refused before, so that no answer of an engine is a surprise.
FUZZED_RECIPE = RECIPE.model_copy(
    update={
        "inputs": {
            "ids": InputRecipe(role=InputRole.VALUES, high=NUM_ROWS, min=0, max=NUM_ROWS - 1),
            "mask": InputRecipe(role=InputRole.MASK, min=0, max=1),
        }
    }
)


class _NoReconciler:
    """The store is looked at once, by the test."""

    async def reconcile_now(self) -> None:
        """Nothing changes."""


@dataclass(frozen=True, kw_only=True)
class World:
    """What a fuzzer speaks to.

    Attributes:
        channel: to the gateway.
        controller: `host:port` of FleetControl.
        replica: with its data port's addresses and token.
    """

    channel: grpc.aio.Channel
    controller: str
    gateway: GatewayServer
    replica: ReplicaServer

    @property
    def data_port(self) -> tuple[str, int]:
        """Host and port of the replica's TCP data port."""
        host, _, port = self.replica.addresses[-1].rpartition(":")
        return host, int(port)


@asynccontextmanager
async def world(
    folder: Path, recipe: Recipe = FUZZED_RECIPE, **security: Any
) -> AsyncIterator[World]:
    """Everything started, and the model ready to be asked.

    With `security`, settings of FleetSecuritySettings, gateway and replica are on two hosts.
    """
    shelf = Shelf(folder, recipe)
    model = shelf.publish_model(max_queue=4096)
    shelf.publish_engine()
    async with AsyncExitStack() as stack:
        state = FleetState(shelf.store_url, os.getpid())
        state.set_model(
            fleet.ServedModel(
                name=model.name,
                version=model.version,
                model_version_json=model.canonical_json(),
            )
        )
        controller = await controller_service(stack, shelf.registry, state, security)
        gateway = await _gateway(stack, controller, security)
        replica = await _replica(stack, controller, folder, security)
        async with asyncio.timeout(_START_S):
            while not gateway.endpoints.table.pools.get(("toy", "")):
                await gateway.endpoints.changed.wait()
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}", options=options)
        await stack.enter_async_context(channel)
        yield World(channel=channel, controller=controller, gateway=gateway, replica=replica)


async def controller_service(
    stack: AsyncExitStack, registry: Registry, state: FleetState, security: dict[str, Any]
) -> str:
    """Start FleetControl as the controller has it; returns its address."""
    settings = FleetSecuritySettings(**security)
    state.note_look()
    # As the controller's own: replicas and gateways ping a line that is quiet.
    server = grpc.aio.server(
        interceptors=token_guards(FleetTokens.of(settings)),
        options=[("grpc.http2.max_ping_strikes", 0)],
    )
    loop = _NoReconciler()
    serving = Serving(registry, state, loop, is_placing=False)
    control = FleetControl(state, loop, serving)
    fleet_grpc.add_FleetControlServicer_to_server(control, server)
    port = listen(server, "127.0.0.1:0", FleetTls.of(settings))
    await server.start()
    stack.push_async_callback(server.stop, None)
    return f"127.0.0.1:{port}"


async def _gateway(
    stack: AsyncExitStack, controller: str, security: dict[str, Any]
) -> GatewayServer:
    elsewhere = {"host_id": "elsewhere"} if security else {}
    settings = GatewaySettings(
        grpc_port=0,
        metrics_port=0,
        controller=controller,
        drain_grace_s=1.0,
        **elsewhere,
        **security,
    )
    gateway = GatewayServer(settings, PrometheusRecorder(GATEWAY_METRICS, CollectorRegistry()))
    await gateway.start()
    stack.push_async_callback(gateway.stop)
    return gateway


async def _replica(
    stack: AsyncExitStack, controller: str, folder: Path, security: dict[str, Any]
) -> ReplicaServer:
    settings = ReplicaSettings(
        store_url=str(folder / "store"),
        cache_dir=folder / "cache",
        model="toy",
        controller_address=controller,
        socket_dir=folder / "s",
        num_threads=1,
        **security,
    )
    replica = ReplicaServer(settings, NullRecorder())
    stack.push_async_callback(replica.stop, grace_s=0)
    await replica.start()
    return replica
