"""Several gateway processes that share one port, under a process that keeps them running.

Each worker is a whole gateway with its own connections to all replicas; they share the port,
where the kernel gives each new connection to one of them, and what clients change, which this
process keeps (`state_keeper.py`). Python runs on one core at a time, so this is how a gateway
uses several.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from services.contracts.errors import InvalidRequestError, NotReadyError
from services.contracts.process.backoff import Backoff
from services.gateway.process_memory import default_upload_bytes
from services.gateway.settings import PREFIX, GatewaySettings
from services.gateway.workers.common_state import CommonState
from services.gateway.workers.state_keeper import StateKeeper
from services.telemetry.ready import wait_ready

logger = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 60.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
# One that ran for so long does not fail for the reason of the one before it.
_LONG_RUN_S: Final = 10.0
# Beyond the time in which it drains.
_STOP_MARGIN_S: Final = 10.0


class Worker:
    """One gateway process; a next one takes its place when it ends.

    Attributes:
        number: from 0, the `worker` label of its metrics.
        metrics_port: on loopback; 0 while it does not serve.
        num_restarts: how often it was started again.
    """

    def __init__(
        self, number: int, settings: dict[str, Any], stop_timeout_s: float, keeper: StateKeeper
    ) -> None:
        """Nothing runs yet.

        Args:
            number: from 0, the `worker` label of its metrics.
            settings: by name, without the prefix of gateway settings.
            stop_timeout_s: how long it may drain at SIGTERM before it is killed.
            keeper: gives each process the state that all workers share.
        """
        self.number = number
        self.metrics_port = 0
        self.num_restarts = 0
        self._settings = settings
        self._stop_timeout_s = stop_timeout_s
        self._keeper = keeper
        self._process: asyncio.subprocess.Process | None = None
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)

    @property
    def pid(self) -> int:
        """Process id; 0 before the start."""
        return self._process.pid if self._process else 0

    async def start(self) -> None:
        """Start it, and return once it serves.

        Raises:
            NotReadyError: it ended or took too long; the reason is on its standard error. Or
                the system starts no process now.
        """
        what = f"gateway worker {self.number}"
        link, theirs = await self._keeper.link(what)
        read_fd, write_fd = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.gateway",
                env=self._environment(ready_fd=write_fd, keeper_fd=theirs.fileno()),
                pass_fds=(write_fd, theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            os.close(read_fd)
            link.close()
            logger.error("%s cannot be started now: %s", what, error)
            raise NotReadyError(f"{what} cannot be started: {error}") from error
        finally:
            os.close(write_fd)
            theirs.close()
        link.kill = partial(_kill, self._process)
        ready = await asyncio.to_thread(wait_ready, read_fd, START_TIMEOUT_S, what)
        self.metrics_port = int(ready["metrics_port"])

    async def keep(self) -> None:
        """Start it again whenever it ends, until cancelled."""
        while True:
            began_s = time.monotonic()
            with suppress(NotReadyError):
                if self._process is None:
                    await self.start()
                await self._ended()
            if time.monotonic() - began_s > _LONG_RUN_S:
                self._backoff.reset()
            await self._backoff.pause()
            self.num_restarts += 1
            await self._kill()

    async def _ended(self) -> None:
        if self._process:
            code = await self._process.wait()
            self.metrics_port = 0
            logger.error(
                "gateway worker %d (process %d) exited with code %d; restarting it",
                self.number,
                self.pid,
                code,
            )

    async def stop(self) -> None:
        """Let it drain and end; kill it when it takes too long."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._stop_timeout_s):
                await self._process.wait()
        except TimeoutError:
            logger.warning("gateway worker %d did not exit in time; killed", self.number)
            await self._kill()

    async def _kill(self) -> None:
        process = self._process
        self._process = None
        if process and process.returncode is None:
            _kill(process)
            await process.wait()

    def _environment(self, **fds: int) -> dict[str, str]:
        given = self._settings | fds | {"parent_pid": os.getpid()}
        return dict(os.environ) | {f"{PREFIX}{k.upper()}": str(v) for k, v in given.items()}


class Workers:
    """All workers of one port.

    Attributes:
        port: where clients connect.
        http_port: where those of HTTP connect; 0 without.
        each: the workers.
    """

    def __init__(self, settings: GatewaySettings, trace_share: float) -> None:
        """Take the port; nothing runs yet.

        `trace_share` is the share of requests that workers trace until a client changes it.

        Raises:
            InvalidRequestError: the port is not available.
        """
        # Held, without listening, so that it stays ours while workers come and go.
        self._held = reserved_port(settings.grpc_host, settings.grpc_port)
        self.port = int(self._held.getsockname()[1])
        self.http_port = 0
        self._held_http: socket.socket | None = None
        if settings.http_port is not None:
            self._held_http = reserved_port(settings.grpc_host, settings.http_port, "http")
            self.http_port = int(self._held_http.getsockname()[1])
        self._keeper = StateKeeper(CommonState(trace_share))
        stop_timeout_s = settings.drain_notice_s + settings.drain_grace_s + _STOP_MARGIN_S
        self.each = tuple(
            Worker(number, self._settings_of(settings, number), stop_timeout_s, self._keeper)
            for number in range(settings.workers)
        )

    def _settings_of(self, settings: GatewaySettings, number: int) -> dict[str, Any]:
        return {
            "workers": 1,
            "is_port_shared": True,
            "grpc_port": self.port,
            **({} if self._held_http is None else {"http_port": self.http_port}),
            # The process above them shows what they count, on one port.
            "metrics_host": "127.0.0.1",
            "metrics_port": 0,
            "gateway_id": f"{settings.gateway_id}-{number}",
            "max_upload_bytes": settings.max_upload_bytes or default_upload_bytes(settings.workers),
        }

    async def run(self, stop: asyncio.Event, on_ready: Callable[[], None]) -> None:
        """Start all, keep them running, and let them drain once `stop` is set.

        Raises:
            InvalidRequestError: one of them did not start.
        """
        try:
            if await self._all_start_before(stop):
                on_ready()
                await self._keep_until(stop)
        finally:
            logger.info("gateway workers drain")
            await asyncio.gather(*(worker.stop() for worker in self.each))
            self._keeper.close()
            self._held.close()
            if self._held_http is not None:
                self._held_http.close()

    async def _all_start_before(self, stop: asyncio.Event) -> bool:
        starting = asyncio.gather(*(worker.start() for worker in self.each))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, stopped, return_exceptions=True)
            return False
        try:
            starting.result()
        except NotReadyError as error:
            raise InvalidRequestError(f"{error}; the reason is logged above") from error
        return True

    async def _keep_until(self, stop: asyncio.Event) -> None:
        keeping = [asyncio.create_task(worker.keep()) for worker in self.each]
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((stopped, *keeping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopped, *keeping):
                task.cancel()
            results = await asyncio.gather(stopped, *keeping, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()


def reserved_port(host: str, port: int, protocol: str = "grpc") -> socket.socket:
    """A socket bound to an address where gateways may listen.

    Args:
        host: an address or a name.
        port: 0 takes a free one.
        protocol: that is served there, which the port's option is called by.

    Raises:
        InvalidRequestError: another process listens there, or it is no address of this host.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # Without sharing at first: another gateway's port would be shared in silence.
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            taken = probe.getsockname()
        held = socket.socket(family)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(taken)
    except OSError as error:
        raise InvalidRequestError(
            f"gateway workers cannot share {host}:{port}: {error}; choose another port with "
            f"`smelt up --{protocol}-port` or SMELT_GATEWAY_{protocol.upper()}_PORT, 0 takes a "
            "free one"
        ) from error
    return held
