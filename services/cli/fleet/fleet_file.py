"""The running fleet's file: where a local fleet listens, for every other command.

A fleet runs while its supervisor holds a lock, which the kernel releases when that ends,
however it ends. A process id alone would not do: after a crash or a reboot another process
may have it, and `smelt down` would end that one.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field, ValidationError

from services.contracts.errors import InvalidRequestError, NotFoundError, NotReadyError
from services.contracts.model.document import Document
from services.contracts.security.fleet_security import (
    FleetSecuritySettings,
    FleetTokens,
    page_token,
)
from services.contracts.text.moments import timestamp
from services.contracts.text.words import NO_FLEET, readable_time

_FILE = "fleet.json"
_LOCK = "fleet.lock"
START_ONE = "start one: smelt up"


class Restarts(Document):
    """How often a process was started again, when last, and why then."""

    num: int
    last_at: str
    why: str


class RunningFleet(Document):
    """A fleet started by `smelt up` on this host.

    Attributes:
        supervisor_pid: process that owns controller and gateway.
        controller: `host:port` of FleetControl.
        grpc_address: `host:port` for KServe v2 clients.
        http_address: the same for clients of HTTP; "" without that port.
        metrics_address: `host:port` of the gateway's /metrics.
        controller_metrics_address: `host:port` of the controller's /metrics.
        prometheus_url, grafana_url: where to look, "" without `--observe`.
        num_gateway_workers: processes that share the gateway's port.
        boards_hint: what to do for boards where Grafana is not installed.
        troubles: processes that do not run now, by name, with what is wrong.
        restarts: processes that were started again, by name.
    """

    supervisor_pid: int
    controller: str
    grpc_address: str
    metrics_address: str
    store_url: str
    http_address: str = ""
    controller_metrics_address: str = ""
    num_gateway_workers: int = 1
    prometheus_url: str = ""
    grafana_url: str = ""
    boards_hint: str = ""
    troubles: Mapping[str, str] = Field(default_factory=dict)
    restarts: Mapping[str, Restarts] = Field(default_factory=dict)

    def page_url(self, settings: FleetSecuritySettings) -> str:
        """The controller's page, with what opens it; "" for a fleet without a token."""
        tokens = FleetTokens.of(settings)
        if tokens is None or not self.controller_metrics_address:
            return ""
        # In the fragment: browsers do not send it, so that it is in no server's log.
        return f"http://{self.controller_metrics_address}/#token={page_token(tokens.newest)}"

    def with_trouble(self, name: str, fault: str, at: str) -> "RunningFleet":
        """The fleet after a process ended, or was started again.

        Args:
            name: of the process.
            fault: why it ended; "" when it runs again.
            at: ISO 8601, UTC.

        Returns:
            A copy; this one stays as it is.
        """
        troubles = {n: words for n, words in self.troubles.items() if n != name}
        restarts = self.restarts
        if fault:
            troubles[name] = fault
        elif why := self.troubles.get(name):
            num = restarts[name].num + 1 if name in restarts else 1
            restarts = {**restarts, name: Restarts(num=num, last_at=at, why=why)}
        return self.model_copy(update={"troubles": troubles, "restarts": restarts})


def make_run_dir(run_dir: Path) -> None:
    """For this user alone; only what starts a fleet makes it."""
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextmanager
def fleet_lock(run_dir: Path) -> Iterator[RunningFleet | None]:
    """Be the one supervisor of this folder; what it published is withdrawn at the end.

    Gives what a supervisor published that was killed, None otherwise.

    Raises:
        InvalidRequestError: a fleet runs here already.
    """
    make_run_dir(run_dir)
    with (run_dir / _LOCK).open("ab", buffering=0) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidRequestError(
                f"a fleet runs or starts already ({run_dir}); stop it: smelt down"
            ) from error
        # Whom `smelt down` ends before there is a fleet's file.
        lock.truncate(0)
        lock.write(str(os.getpid()).encode())
        # The supervisor that held the lock before may have been killed.
        former = _read(run_dir)
        _withdraw(run_dir)
        try:
            yield former
        finally:
            _withdraw(run_dir)


def write_fleet(run_dir: Path, running: RunningFleet) -> None:
    """Publish the file, under the lock; renamed into place, so never read half."""
    partial = run_dir / f"{_FILE}.partial"
    partial.write_bytes(running.canonical_json())
    partial.replace(run_dir / _FILE)


def find_fleet(run_dir: Path) -> RunningFleet | None:
    """The running fleet, or None; a file left by a supervisor that has ended counts as none."""
    if not _is_locked(run_dir):
        return None
    return _read(run_dir)


def require_fleet(run_dir: Path) -> RunningFleet:
    """The running fleet; raises NotFoundError where none is, NotReadyError where one starts."""
    running = find_fleet(run_dir)
    if running is not None:
        return running
    if words := starting_words(run_dir):
        raise NotReadyError(f"{words}; what it does: smelt logs")
    raise NotFoundError(f"{NO_FLEET} ({run_dir}); {START_ONE}")


def starting_words(run_dir: Path) -> str:
    """Since when a fleet is starting; "" where none is."""
    if not _is_locked(run_dir) or _read(run_dir):
        return ""
    since = datetime.fromtimestamp((run_dir / _LOCK).stat().st_mtime, UTC)
    return f"a fleet is starting here since {readable_time(timestamp(since))}"


def supervisor_pid(run_dir: Path) -> int:
    """The process of the fleet that runs or starts; raises NotFoundError where there is none."""
    running = find_fleet(run_dir)
    if running is not None:
        return running.supervisor_pid
    owner = (run_dir / _LOCK).read_text() if _is_locked(run_dir) else ""
    if not owner:
        raise NotFoundError(f"{NO_FLEET} ({run_dir}); there is nothing to stop")
    return int(owner)


def _is_locked(run_dir: Path) -> bool:
    try:
        with (run_dir / _LOCK).open("rb") as lock:
            # Shared, so that two commands at once do not take each other for a fleet.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _read(run_dir: Path) -> RunningFleet | None:
    with suppress(FileNotFoundError, ValidationError):
        return RunningFleet.from_json((run_dir / _FILE).read_bytes())
    return None


def _withdraw(run_dir: Path) -> None:
    (run_dir / _FILE).unlink(missing_ok=True)
