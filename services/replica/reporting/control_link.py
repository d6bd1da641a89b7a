"""A replica's Attach stream to the controller: it sends reports and gets announcements.

The stream may break at any time, because controllers restart: the replica serves on and
attaches again. While it is down the fleet does not know this replica, so retries are quick
at first; each attempt begins with a full report, so nothing is lost in between.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import grpc.aio

from services.contracts.process.backoff import Backoff
from services.contracts.security.fleet_dialer import FleetDialer
from services.pb import fleet_v1_pb2 as pb
from services.pb.fleet_v1_pb2_grpc import FleetControlStub
from services.replica.closing import ended

logger = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.1
_MAX_DELAY_S = 5.0
# How long a controller may take to read the last report.
_FAREWELL_S = 1.0


class ControlLink:
    """Keeps one replica attached to the controller."""

    def __init__(
        self,
        address: str,
        report: Callable[[], pb.ReplicaReport],
        *,
        on_engines_changed: Callable[[pb.EnginesChanged], None],
        dialer: FleetDialer | None = None,
        outage_s: float = 10.0,
    ) -> None:
        """Take the controller's `host:port` and what to call; `start` connects.

        Args:
            address: the controller's gRPC address.
            report: what is true of the replica now.
            on_engines_changed: given the announcement; must not block.
            dialer: how the controller is spoken to; None does so in the clear.
            outage_s: warn of one that is away for longer than it restarts, or than a fleet stops.
        """
        self._dialer = dialer or FleetDialer()
        self._address = address
        self._outage_s = outage_s
        self._report = report
        self._on_engines_changed = on_engines_changed
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the task that keeps the replica attached runs."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Connect, and keep connected until `close`."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="control-link")

    def report_changed(self) -> None:
        """The replica's report differs from the last one: send it."""
        self._changed.set()

    async def close(self) -> None:
        """Detach; the controller withdraws the endpoint at once.

        The last report is sent before, and the controller's end of the stream awaited for a
        while: cancelling at once could drop that report on its way.
        """
        if self._task:
            self._closing.set()
            self._changed.set()
            try:
                await asyncio.wait([self._task], timeout=_FAREWELL_S)
            finally:
                await ended(self._task)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        # Spread out, so that a fleet does not fall upon a restarted controller at once.
        backoff = Backoff(_FIRST_DELAY_S, _MAX_DELAY_S)
        lost_s = loop.time()
        while not self._closing.is_set():
            began_s = loop.time()
            fault = "it closed the Attach stream"
            try:
                # A new one each time: certificates and tokens are rotated.
                async with self._dialer.aio_channel(self._address) as channel:
                    attach = FleetControlStub(channel).Attach
                    metadata = self._dialer.metadata()
                    async for command in attach(self._reports(), metadata=metadata):
                        self._run_command(command)
                if self._closing.is_set():
                    return
            except grpc.aio.AioRpcError as error:
                fault = f"{error.code()} {error.details()}"
            now_s = loop.time()
            if now_s - began_s > _MAX_DELAY_S:
                backoff.reset()
                lost_s = now_s
            level = logging.WARNING if now_s - lost_s > self._outage_s else logging.DEBUG
            logger.log(level, "controller %s: %s; attaching again", self._address, fault)
            await backoff.pause()

    async def _reports(self) -> AsyncIterator[pb.ReplicaReport]:
        while True:
            self._changed.clear()
            is_last = self._closing.is_set()
            yield self._report()
            if is_last:
                return
            await self._changed.wait()

    def _run_command(self, command: pb.ReplicaCommand) -> None:
        match command.WhichOneof("command"):
            case "engines_changed":
                self._on_engines_changed(command.engines_changed)
            case unknown:
                logger.warning("command %s is unknown to this replica; ignored", unknown)
