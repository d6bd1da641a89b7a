"""A server of a tree in a process of its own, and what that process takes."""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Served(NamedTuple):
    """One server.

    Attributes:
        port, tls_port: where it listens, without and with TLS.
        pid: its process.
    """

    port: int
    tls_port: int
    pid: int

    @property
    def resident_mb(self) -> float:
        """Of its memory, now."""
        return self._status_mb("VmRSS")

    @property
    def peak_mb(self) -> float:
        """The most that was resident since `forget_peak`."""
        return self._status_mb("VmHWM")

    def forget_peak(self) -> None:
        """What is resident now is the most; see proc(5) on clear_refs."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def cpu_s(self) -> float:
        """Processor time as yet."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _status_mb(self, name: str) -> float:
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+) kB", text)
        assert found, f"no {name} in {text}"
        return int(found[1]) / 1024


@contextmanager
def served(tree: Path) -> Iterator[Served]:
    """A server of that tree."""
    script = Path(__file__).with_name("server.py")
    # First: what else is there has this process's packages.
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            port, tls_port = map(int, server.stdout.readline().split())
            yield Served(port, tls_port, server.pid)
        finally:
            server.kill()


def open_more_files() -> int:
    """Raise this process's limit of open files as far as it may; the limit."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
