"""What this host, or this container, has of memory, and what of it a build may take."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# All builds of a host together. The rest is left to the worker, the store's client and whatever
# serves beside them; without a bound the kernel would end one of those in place of the build.
_SHARE: Final = 0.8
# Of all memory. With less it is others that hold it, and they may be gone the next time.
_LEAST_SHARE: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class ControlGroup:
    """The files in which the kernel has a container's memory, of cgroup v1 or v2.

    Attributes:
        limit, usage: names of files with a number of bytes each.
        cached: what `memory.stat` calls the cache of files that nothing has used lately: it is
            part of the usage, and given back when memory is short.
    """

    folder: Path
    limit: str
    usage: str
    cached: str


CONTROL_GROUPS = (
    ControlGroup(
        folder=Path("/sys/fs/cgroup"),
        limit="memory.max",
        usage="memory.current",
        cached="inactive_file",
    ),
    ControlGroup(
        folder=Path("/sys/fs/cgroup/memory"),
        limit="memory.limit_in_bytes",
        usage="memory.usage_in_bytes",
        cached="total_inactive_file",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """What a build may take at a moment.

    Attributes:
        num_bytes: resident memory with all its children.
        words: of what it is a part; "" for a configured limit.
        is_temporary: others hold so much that the same build may have more another time.
    """

    num_bytes: int
    words: str = ""
    is_temporary: bool = False


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """Of the host, or of the container where that has less.

    Attributes:
        total_bytes: what there is.
        available_bytes: what can be had of it now, caches of files included.
    """

    total_bytes: int
    available_bytes: int

    def allowance(self, used_bytes: int, num_builds: int) -> Allowance:
        """What one of several builds may take: most of what all others leave to it.

        While the host has the rest to spare, that is all of it beyond this rest. When it has not,
        it is a share: equal where all hold the same, and more than its part by number for one
        beside small ones.

        Args:
            used_bytes: what it holds already.
            num_builds: that run here now, this one among them.
        """
        # Both are estimates of the kernel's, read one after the other.
        left_bytes = min(self.available_bytes + used_bytes, self.total_bytes)
        share_bytes = int(left_bytes * _SHARE / (_SHARE + num_builds * (1 - _SHARE)))
        num_bytes = max(share_bytes, left_bytes - int((1 - _SHARE) * self.total_bytes))
        return Allowance(
            num_bytes=num_bytes,
            words=f" to one of {num_builds} builds, of {left_bytes / 2**30:.2f} that others leave "
            f"of {self.total_bytes / 2**30:.2f}",
            is_temporary=num_builds > 1 or num_bytes < _LEAST_SHARE * self.total_bytes,
        )


def host_memory() -> HostMemory:
    """Memory as it is now."""
    import psutil

    host = psutil.virtual_memory()
    total_bytes = int(host.total)
    available_bytes = int(host.available)
    for group in CONTROL_GROUPS:
        # "max" where there is no limit; cgroup v1 has a huge number.
        with suppress(OSError, ValueError):
            limit = int((group.folder / group.limit).read_text())
            total_bytes = min(total_bytes, limit)
            available_bytes = min(available_bytes, max(limit - _held_bytes(group), 0))
    return HostMemory(total_bytes=total_bytes, available_bytes=available_bytes)


def _held_bytes(group: ControlGroup) -> int:
    lines = (group.folder / "memory.stat").read_text().splitlines()
    cached = (int(line.split()[1]) for line in lines if line.startswith(f"{group.cached} "))
    return int((group.folder / group.usage).read_text()) - next(cached, 0)
