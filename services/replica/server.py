"""A replica as a process part: opens store and ports, attaches to the controller, stops.

Order of a start: attach (the fleet sees it loading), load and warm the engine, open the
data port, report ready. Order of a stop: report draining, answer what was accepted, close.
"""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from services.contracts.errors import EngineError, NotReadyError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry
from services.contracts.security.fleet_dialer import FleetDialer
from services.contracts.security.signing import TrustRoot
from services.contracts.store.object_store import open_store
from services.contracts.transport.busy_poll import BusyPoll
from services.contracts.transport.frames import NO_TOKEN, TOKEN_BYTES, InferFrame
from services.engines.caches.passed_checks import CHECKED
from services.engines.device.device_probe import probe_device
from services.pb import fleet_v1_pb2 as fleet
from services.replica.closing import close_all, ended
from services.replica.engine.checker import EngineChecker
from services.replica.engine.failure_notes import FailureNotes
from services.replica.engine.fallback import CompiledFallback
from services.replica.engine.manager import EngineManager
from services.replica.replica import Replica
from services.replica.reporting.control_link import ControlLink
from services.replica.reporting.reports import report_from_replica
from services.replica.reporting.request_spans import RequestSpans
from services.replica.request.tokeniser import Tokeniser, tokeniser_of
from services.replica.sampling.sampler import Sampler
from services.replica.settings import ReplicaSettings
from services.replica.transport.data_server import DataServer
from services.replica.transport.port_check import check_data_port
from services.telemetry.measured_store import MeasuredStore
from services.telemetry.recorder import Recorder
from services.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)

# Gateways learn of a draining replica within a stream message or two; until then their
# requests are still taken.
_WITHDRAWAL_S = 0.2
_DRAIN_TIMEOUT_S = 30.0
# What failed for a while is tried again; only without a controller is the store listed for it.
_RESELECT_PERIOD_S = 60.0
# A port there has no address of its own to dial.
_ALL_INTERFACES = ("0.0.0.0", "::", "[::]")  # noqa: S104 - compared with, not bound to
# Twice in the shortest period at which Ray exports.
_SHOW_PERIOD_S = 0.5


class ReplicaServer:
    """One replica with its ports, from start to stop.

    Attributes:
        replica_id: unique in the fleet.
        addresses: where the data port listens.
        token: what gateways must send to it; any will do for a replica that serves alone.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        recorder: Recorder,
        *,
        replica_id: str = "",
        tracing: Tracing | None = None,
        reselect_period_s: float = _RESELECT_PERIOD_S,
    ) -> None:
        """Nothing is opened yet.

        Args:
            settings: of the process.
            recorder: takes all metrics.
            replica_id: unique in the fleet; made of the host's name by default.
            tracing: makes spans; None makes none.
            reselect_period_s: how often the store is looked at without news.

        Raises:
            InvalidRequestError: the fleet's certificate or token cannot be used.
        """
        self.replica_id = replica_id or f"{socket.gethostname()}-{secrets.token_hex(6)}"
        self.addresses: list[str] = []
        is_alone = not settings.controller_address
        self.token = NO_TOKEN if is_alone else secrets.token_bytes(TOKEN_BYTES)
        self._has_news = asyncio.Event()
        self._settings = settings
        self._recorder = recorder
        self._reselect_period_s = reselect_period_s
        self._spans = RequestSpans(tracing) if tracing else None
        self._dialer = FleetDialer.of(settings)
        self._replica: Replica | None = None
        self._manager: EngineManager | None = None
        self._data: DataServer | None = None
        self._link: ControlLink | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def replica(self) -> Replica:
        """The replica; raises NotReadyError before `start`."""
        if self._replica is None:
            raise NotReadyError("the replica has not started")
        return self._replica

    async def start(self) -> None:
        """Serve; returns when requests are answered and the controller was informed.

        Raises:
            NotFoundError: no such model or version in the store.
            EngineError: no engine and no fallback can be loaded.
            InvalidRequestError: an address is not available.
        """
        model, device, manager, tokeniser, sampler = await asyncio.to_thread(self._open)
        self._manager = manager
        self._replica = Replica(
            model,
            device,
            manager,
            self._recorder,
            on_change=self._report_changed,
            standby_s=self._settings.standby_s,
            spans=self._spans,
            tokeniser=tokeniser,
            sampler=sampler,
        )
        try:
            self._attach(model, device)
            await self._replica.load()
            await self._listen()
        except BaseException:
            try:
                await self.stop(grace_s=0)
            except Exception:  # what went wrong first is what is raised
                logger.exception("a replica that failed to start also failed to close")
            raise
        self._replica.set_state(fleet.REPLICA_STATE_READY)
        if self._replica.loaded and self._replica.loaded.is_interim:
            self._has_news.set()
        self._spawn(self._reselect())
        self._spawn(self._show_state())
        logger.info("replica %s is ready at %s", self.replica_id, ", ".join(self.addresses))

    async def stop(self, grace_s: float = _DRAIN_TIMEOUT_S) -> None:
        """Drain for at most `grace_s`, then close everything; a second call does nothing.

        Every part is closed, also when one before it fails; the first error is raised then.
        """
        drain = partial(self._drain, grace_s)
        await close_all(
            *([drain] if self._replica and grace_s > 0 else []),
            # A swap that is under way must not put its engine into an executor that closes.
            self._end_tasks,
            self._close_ports,
            self._close_link,
            *([self._replica.close] if self._replica else []),
        )

    async def check_health(self) -> None:
        """Check that the data port answers and the engine's thread and batcher run.

        Raises:
            EngineError: the replica must be replaced; gateways are informed at once.
        """
        replica = self.replica
        try:
            await replica.check_health()
            if self.addresses:
                await check_data_port(self.addresses[0].removeprefix("unix:"), self.token)
            if self._link and not self._link.is_running:
                raise EngineError("the control stream task ended; restart the replica")
        except EngineError:
            if replica.state == fleet.REPLICA_STATE_READY:
                replica.set_state(fleet.REPLICA_STATE_FAILED)
            raise
        if replica.state == fleet.REPLICA_STATE_FAILED:
            replica.set_state(fleet.REPLICA_STATE_READY)

    def _open(
        self,
    ) -> tuple[ModelVersion, DeviceFacts, EngineManager, Tokeniser | None, Sampler | None]:
        settings = self._settings
        store = MeasuredStore(open_store(settings.store_url), self._recorder)
        registry = Registry(store, settings.cache_dir, settings.sample_key)
        model = registry.model_version(settings.model, settings.version or None)
        device = probe_device(override=settings.generation_override or None)
        fallback = CompiledFallback(
            settings.store_url,
            settings.cache_dir,
            # It is compiled here and now, so a simulated generation is no device for it.
            probe_device() if settings.generation_override else device,
            num_threads=settings.num_threads,
            timeout_s=settings.fallback_timeout_s,
        )
        checker = EngineChecker(settings.cache_dir / CHECKED)
        threads = settings.num_threads
        trust = TrustRoot(settings.trust_root) if settings.trust_root else None
        manager = EngineManager(
            registry,
            model,
            device,
            fallback,
            checker,
            num_threads=threads,
            trust=trust,
            notes=FailureNotes(settings.cache_dir / "failed"),
        )
        tokeniser = tokeniser_of(model, registry)
        sampling = model.recipe.sampling
        sampler = Sampler(model, sampling, registry, self._recorder) if sampling else None
        return model, device, manager, tokeniser, sampler

    def _attach(self, model: ModelVersion, device: DeviceFacts) -> None:
        if not self._settings.controller_address:
            return
        self._link = ControlLink(
            self._settings.controller_address,
            lambda: report_from_replica(
                self.replica,
                model,
                device,
                replica_id=self.replica_id,
                addresses=self.addresses,
                token=self.token,
            ),
            on_engines_changed=self._engines_changed,
            dialer=self._dialer,
        )
        self._link.start()

    async def _listen(self) -> None:
        self._data = DataServer(
            self._infer,
            self._statistics,
            token=self.token,
            tls=self._dialer.tls,
            poll=BusyPoll.if_worth(self._settings.busy_poll_s, is_asking=False),
        )
        folder = self._settings.socket_dir
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        # Short, because the path of a unix socket holds 107 bytes.
        name = f"r-{os.getpid()}-{secrets.token_hex(3)}.sock"
        for address in (f"unix:{folder.absolute() / name}", f"{self._settings.host}:0"):
            self.addresses.append(self._announced(await self._data.listen(address)))

    def _announced(self, address: str) -> str:
        """The address as gateways are to dial it."""
        host, _, port = address.rpartition(":")
        named = self._settings.announced_host if host in _ALL_INTERFACES else ""
        return f"{named or host}:{port}"

    def _infer(self, frame: InferFrame) -> asyncio.Future[bytes]:
        deadline_s = None if frame.deadline_s is None else time.monotonic() + frame.deadline_s
        return self.replica.infer(frame.request, deadline_s, frame.trace)

    async def _statistics(self) -> bytes:
        return self.replica.statistics.message().SerializeToString()

    def _report_changed(self) -> None:
        if self._link:
            self._link.report_changed()

    def _engines_changed(self, announced: fleet.EnginesChanged) -> None:
        logger.info(
            "engines of master %s may have changed; selecting again",
            announced.master_digest[:12] or "in use",
        )
        if self._manager:
            self._manager.announce(announced.document_keys)
        self._has_news.set()

    async def _reselect(self) -> None:
        """Take better engines as they are announced, and look now and then without news.

        News that came while the first engine was loading are found set when this begins.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._reselect_period_s):
                    await self._has_news.wait()
            self._has_news.clear()
            try:
                await self.replica.reselect_engine()
            except Exception:
                logger.exception("engine swap failed; keeping the current engine")

    async def _show_state(self) -> None:
        """Set gauges at intervals: an engine that hangs completes nothing to count."""
        while True:
            try:
                self.replica.show_now()
            except Exception:
                logger.exception("gauges not updated; retrying")
            await asyncio.sleep(_SHOW_PERIOD_S)

    async def _drain(self, timeout_s: float) -> None:
        self.replica.set_state(fleet.REPLICA_STATE_DRAINING)
        if self._link:
            await asyncio.sleep(_WITHDRAWAL_S)
        try:
            async with asyncio.timeout(timeout_s):
                await self.replica.drain()
        except TimeoutError:
            left = self.replica.num_unanswered
            logger.warning("%d requests unanswered after %g s of draining", left, timeout_s)

    async def _end_tasks(self) -> None:
        await close_all(*(partial(ended, task) for task in list(self._tasks)))

    async def _close_ports(self) -> None:
        data = self._data
        self._data = None
        if data:
            await data.close()

    async def _close_link(self) -> None:
        link = self._link
        self._link = None
        if link:
            await link.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
