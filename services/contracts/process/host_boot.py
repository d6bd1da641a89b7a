"""The boot of this host: what its processes were at ended with the one before."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from services.contracts.text.moments import utc_now

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UPTIME = Path("/proc/uptime")


@dataclass(frozen=True, kw_only=True)
class HostBoot:
    """One boot.

    Attributes:
        boot_id: no other boot of any host has it.
        began_at: with its zone, by this host's present clock.
    """

    boot_id: str
    began_at: datetime


def boot_id() -> str:
    """The kernel's id of its boot.

    Raises:
        OSError: there is none.
    """
    return _BOOT_ID.read_text().strip()


def host_boot() -> HostBoot | None:
    """The present boot; None where the kernel does not say."""
    try:
        up_s = float(_UPTIME.read_text().split()[0])
        return HostBoot(boot_id=boot_id(), began_at=utc_now() - timedelta(seconds=up_s))
    except OSError:
        return None
