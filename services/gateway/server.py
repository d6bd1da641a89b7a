"""The gateway's parts, put together, started and stopped in order."""

import asyncio
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from grpc_health.v1 import health_pb2_grpc

from services.contracts.errors import InvalidRequestError, OverloadedError
from services.contracts.security.fleet_dialer import FleetDialer
from services.contracts.transport.busy_poll import BusyPoll
from services.gateway.access.gate import Gate
from services.gateway.access.guard import early_check, guarded
from services.gateway.access.tls import HTTP1, RotatingTls, server_credentials
from services.gateway.api.handlers import offered_handlers, refuse, service_handler
from services.gateway.api.health import HealthServicer
from services.gateway.api.metadata import MetadataServicer
from services.gateway.api.optional_rpcs import OptionalRpcs
from services.gateway.api.reflection import enable_reflection
from services.gateway.api.service import SERVICE
from services.gateway.api.status_codes import StatusTable
from services.gateway.observability.fleet_observer import FleetObserver
from services.gateway.observability.request_observers import (
    note_rejection,
    note_unhandled,
    request_observers,
)
from services.gateway.pipeline.admission import AdmittedInference, Bound, ModelBounds
from services.gateway.pipeline.forwarding import ForwardedInference
from services.gateway.pipeline.holding import HeldRequests, HoldLimits
from services.gateway.pipeline.inference import InferenceHandler, ObservedInference
from services.gateway.pipeline.parts import PartInference
from services.gateway.pipeline.response_cache import CachedInference
from services.gateway.process_memory import default_upload_bytes
from services.gateway.routing.controller_epochs import ControllerEpochs
from services.gateway.routing.controller_watch import ControllerWatch
from services.gateway.routing.endpoints import EndpointSet
from services.gateway.routing.fleet_view import fleet_view_from_snapshot
from services.gateway.routing.outliers import OutlierWatch
from services.gateway.routing.use_reports import UseReports
from services.gateway.server_limits import server_limits
from services.gateway.settings import GatewaySettings
from services.gateway.shared_memory.interceptor import SharedMemoryInference
from services.gateway.triton_metrics import TritonMetrics
from services.gateway.upstream.arena import request_arena
from services.gateway.upstream.replica_connection import connect
from services.gateway.workers.keeper_link import KeeperLink
from services.grpc_server.aio_server import AioServer
from services.grpc_server.server import GrpcServer
from services.grpc_server.server_options import OverloadStatus
from services.pb import fleet_v1_pb2 as fleet
from services.pb import open_inference_v2_pb2 as pb
from services.telemetry.recorder import Recorder
from services.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from services.gateway.http.http_server import HttpServer

# How long one of several gateways on a port waits for the controller before it serves.
SETTLE_TIMEOUT_S: Final = 5.0
HEALTH_SERVICE: Final = "grpc.health.v1.Health"


class GatewayServer:
    """One gateway: a gRPC server, the watch of the controller, connections to replicas.

    Attributes:
        port: where clients connect, once started.
        http_port: where those of HTTP connect; 0 without.
        arena: what large requests are read into; None where there is no memory for it.
        endpoints: the replicas that can be asked.
        triton_metrics: to be registered with whatever is scraped; None when switched off.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        recorder: Recorder,
        tracing: Tracing | None = None,
        keeper: KeeperLink | None = None,
    ) -> None:
        """Nothing runs yet; call inside the event loop that will run it.

        Args:
            settings: of the process.
            recorder: takes all metrics.
            tracing: makes spans; None makes none.
            keeper: leads to the process above, where this is one of several workers.

        Raises:
            InvalidRequestError: the access file, a TLS file or the access log cannot be used.
        """
        self.port = 0
        self.http_port = 0
        self._settings = settings
        dialer = FleetDialer.of(settings)
        self.arena = request_arena(settings.request_memory_bytes)
        self.endpoints = self._new_endpoints(dialer)
        self._health = HealthServicer()
        self._outliers = OutlierWatch(
            settings.outlier_rules, recorder, self.endpoints.peers_of, self.endpoints.renew
        )
        self._bounds = ModelBounds(settings.max_in_flight_per_model, settings.model_max_in_flight)
        self._max_upload_bytes = settings.max_upload_bytes or default_upload_bytes()
        self._forwarded, self._uses = self._new_forwarded(recorder, dialer)
        self._observer = FleetObserver(
            self._health, recorder, self._forwarded.num_in_flight, self.arena
        )
        self._watch = ControllerWatch(
            settings.controller,
            settings.gateway_id,
            self._take_over,
            self._observer.note_controller,
            dialer,
        )
        self._epochs = ControllerEpochs(settings.reattach_grace_s)
        self._grace: asyncio.TimerHandle | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._tls = {protocol: _tls_of(settings, protocol) for protocol in ("grpc", "http")}
        self._optional_rpcs = OptionalRpcs(settings, self.endpoints, dialer, tracing, keeper)
        self._keeper = keeper
        room_bytes = settings.response_cache_bytes
        self._cached = CachedInference(self._forwarded, self.endpoints, recorder, room_bytes)
        self.triton_metrics: TritonMetrics | None = None
        if settings.triton_metrics:
            statistics = self._cached.statistics
            self.triton_metrics = TritonMetrics(self._forwarded.num_in_flight, statistics)
        self._observers = request_observers(settings, recorder, tracing, self.triton_metrics)
        statuses = StatusTable(overload_as_unavailable=settings.overload_as_unavailable)
        gate = Gate(settings.access_file) if settings.access_file else None
        self._server = self._new_server(statuses, gate)
        handlers = self._add_services(statuses, gate)
        self._http = self._new_http(handlers, statuses)

    def _new_endpoints(self, dialer: FleetDialer) -> EndpointSet:
        return EndpointSet(
            host_id=self._settings.host_id,
            connect=partial(
                connect,
                tls=dialer.tls,
                arena=self.arena,
                poll=BusyPoll.if_worth(self._settings.busy_poll_s, is_asking=True),
            ),
            slow_start_s=self._settings.slow_start_s,
            limits=self._settings.external_limits,
        )

    def _new_server(self, statuses: StatusTable, gate: Gate | None) -> GrpcServer | AioServer:
        server = GrpcServer(
            server_limits(self._settings),
            take=self.arena.take if self.arena else None,
            check=early_check(gate, statuses) if gate else None,
            on_unhandled=note_unhandled(self._observers),
            on_connections=self._observer.note_connections,
            overload=_overload_of(statuses),
        )
        self._options = server.options
        return AioServer(server.options.limits) if self._settings.server == "grpc" else server

    def _new_http(self, handlers: Mapping[str, Any], statuses: StatusTable) -> "HttpServer | None":
        if self._settings.http_port is None:
            return None
        from services.gateway.http.http_app import HttpApp
        from services.gateway.http.http_server import HttpServer

        app = HttpApp(
            handlers,
            statuses,
            self._options,
            lambda: self._health.is_leaving,
            is_external=self.endpoints.is_openai,
            bound_of=lambda name: self._bounds.limit(name) or self._settings.max_in_flight,
        )
        return HttpServer(app, self._options.limits)

    def _new_forwarded(
        self, recorder: Recorder, dialer: FleetDialer
    ) -> tuple[ForwardedInference, UseReports]:
        # What waits must leave room for the models that serve.
        max_held = (self._settings.max_in_flight + 1) // 2
        limits = HoldLimits(self._settings.hold_s, max_held, self._max_upload_bytes // 4)
        held = HeldRequests(self.endpoints, recorder, limits)
        forwarded = ForwardedInference(self.endpoints, recorder, self._outliers, self._bounds, held)
        address = (self._settings.controller, self._settings.gateway_id)
        uses = UseReports(*address, dialer, self.endpoints, held, forwarded.num_in_flight)
        return forwarded, uses

    def _add_services(self, statuses: StatusTable, gate: Gate | None) -> Mapping[str, Any]:
        # The chain of interceptors, innermost first. Refusals are observed, so observers are
        # outside admission; admission is outside forwarding, so that a flood
        # is refused before its bytes are read. Errors become statuses in the handler, last.
        for part in (self._forwarded, self._cached, self.triton_metrics):
            if part:
                self._observer.gone.on_drop(part.forget)
        inner: InferenceHandler = self._cached
        max_bytes = self._settings.max_message_bytes
        if self._settings.shared_memory:
            # Outside the cache: an answer is the same wherever its tensors lie.
            inner = SharedMemoryInference(inner, self._optional_rpcs.regions, max_bytes)
        max_in_flight = self._settings.max_in_flight
        admitted = AdmittedInference(inner, max_in_flight, self._max_upload_bytes // 2)
        parts = PartInference(admitted, self._forwarded.held)
        observed = ObservedInference(parts, statuses, self._observers, max_answer_bytes=max_bytes)
        names = self._settings.server_name, metadata.version("smelt")
        servicer = MetadataServicer(
            self.endpoints, names, self._cached.statistics, self._optional_rpcs.extensions
        )
        handlers = offered_handlers(
            observed,
            servicer,
            statuses,
            self._optional_rpcs.methods,
            session_key=self._settings.session_key,
            bound=Bound(
                self._settings.max_in_flight,
                "the metadata service of this gateway",
                "SMELT_GATEWAY_MAX_IN_FLIGHT",
            ),
            has_parts=self.endpoints.has_parts,
        )
        if gate:
            handlers = guarded(handlers, gate, statuses, partial(note_rejection, self._observers))
        self._server.add_generic_rpc_handlers(
            (service_handler(handlers, statuses, self._optional_rpcs.disabled),)
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        services = (SERVICE.full_name, HEALTH_SERVICE)
        enable_reflection(
            self._server,
            pb.DESCRIPTOR.pool,
            services,
            lambda context, error: refuse(context, statuses, error),
        )
        return handlers

    async def start(self) -> None:
        """Listen, and begin to follow the controller.

        Raises:
            InvalidRequestError: the port is not available.
            NotReadyError: this is a worker, and the process above it has gone.
        """
        if self._keeper:
            # No client shall find a worker that lacks what was changed before.
            await self._keeper.restore()
        if self._settings.is_port_shared:
            # Others may serve there already: no client shall find one that knows no replica.
            self._begin()
            await self.endpoints.settle(SETTLE_TIMEOUT_S)
        try:
            self.port = await self._listen(self._server, self._settings.grpc_port, "grpc")
            if self._http:
                self.http_port = await self._listen(self._http, self._settings.http_port, "http")
        except InvalidRequestError:
            self._end()
            raise
        if not self._tasks:
            self._begin()

    def _begin(self) -> None:
        self._tasks = (
            asyncio.create_task(self._watch.run(), name="watch controller"),
            asyncio.create_task(self._uses.run(), name="report uses"),
            asyncio.create_task(self._observer.follow(self.endpoints), name="publish changes"),
            asyncio.create_task(self._observer.sample(), name="sample load"),
            asyncio.create_task(self._outliers.watch(self.endpoints.peers), name="find outliers"),
        )
        if self.triton_metrics:
            follow = self.triton_metrics.follow(self.endpoints)
            self._tasks += (asyncio.create_task(follow, name="ask for statistics"),)

    def _end(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _listen(
        self, server: "GrpcServer | AioServer | HttpServer", port: int | None, protocol: str
    ) -> int:
        host = self._settings.grpc_host
        is_shared = self._settings.is_port_shared
        tls = self._tls[protocol]
        try:
            # Shared only when asked for: two gateways on one port by mistake would share clients.
            return await server.start(host, port or 0, tls=tls, is_shared=is_shared)
        except OSError as error:
            raise InvalidRequestError(
                f"gateway cannot listen on {host}:{port}: {error}; choose another port with "
                f"`smelt up --{protocol}-port` or SMELT_GATEWAY_{protocol.upper()}_PORT, 0 takes a "
                "free one"
            ) from error

    async def serve_until(self, stop: asyncio.Event) -> None:
        """Serve; raises what ended a background task, as without one nothing would be true."""
        stopped = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait((stopped, *self._tasks), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Answer NOT_SERVING, take no more requests, wait for those in flight, and close."""
        self._health.leave()
        await asyncio.sleep(self._settings.drain_notice_s)
        servers = [self._server, *([self._http] if self._http else [])]
        await asyncio.gather(*(each.stop(self._settings.drain_grace_s) for each in servers))
        self._end()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._grace:
            self._grace.cancel()
        self.endpoints.close()
        await self.endpoints.close_external()
        self._optional_rpcs.close()
        if self.arena:
            self.arena.close()
        if self._keeper:
            self._keeper.close()
        for observer in self._observers:
            await asyncio.to_thread(observer.close)

    def _take_over(self, snapshot: fleet.FleetSnapshot) -> None:
        self._epochs.update(fleet_view_from_snapshot(snapshot))
        self._apply()
        self._bounds.log_unknown(self.endpoints.table.view.models.keys())

    def _apply(self) -> None:
        self.endpoints.apply(self._epochs.completed())
        if self._grace:
            self._grace.cancel()
        if left_s := self._epochs.grace_left_s:
            # Look again when what the former controller left is to be forgotten.
            self._grace = asyncio.get_running_loop().call_later(left_s, self._apply)


def _tls_of(settings: GatewaySettings, protocol: str) -> Any:
    """Of a port, as its server takes it; None without."""
    if settings.tls is None:
        return None
    if protocol == "http":
        return RotatingTls(settings.tls, protocol=HTTP1).context
    context = RotatingTls(settings.tls).context
    return server_credentials(settings.tls) if settings.server == "grpc" else context


def _overload_of(statuses: StatusTable) -> OverloadStatus:
    refusal = statuses.refusal_of(OverloadedError("no room"))
    return OverloadStatus(refusal.code, refusal.trailing)
