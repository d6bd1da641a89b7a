"""Engines that a throw-away process has loaded and run here, so that a replica need not again.

A replica's check and a proof are both such a process, so an engine that is proven on a host is
loaded there at once.
"""

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.document import canonical_json
from services.contracts.model.manifest import EngineManifest
from services.engines.caches.host_lock import LONGEST_TURN_S, host_turn

logger = logging.getLogger(__name__)

# Below the cache of a host, which its replicas and compiler workers share.
CHECKED: Final = "checked"


class PassedChecks:
    """Marks in a folder: of an engine's bytes, on a device, with the versions of its libraries."""

    def __init__(self, folder: Path) -> None:
        """The folder is made with the first mark."""
        self._folder = folder

    @contextmanager
    def turn(self, longest_wait_s: float = LONGEST_TURN_S) -> Iterator[None]:
        """Wait until no other process of this host checks: a GPU has room for one that does.

        Where the disk or its file system takes no lock, or it takes too long, all check at once.
        """
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
        with host_turn(self._folder, longest_wait_s):
            yield

    def has(self, manifest: EngineManifest, device: DeviceFacts, num_threads: int) -> bool:
        """Whether the engine ran here; see `name_here`."""
        return (self._folder / name_here(manifest, device, num_threads)).is_file()

    def add(self, manifest: EngineManifest, device: DeviceFacts, num_threads: int) -> None:
        """Note that the engine ran, where the disk takes the mark; see `name_here`."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / name_here(manifest, device, num_threads)).touch()
        except OSError as error:
            # It saves a later check; without it an engine is as good.
            logger.warning("passed check not recorded: %s; the next load checks again", error)


def name_here(manifest: EngineManifest, device: DeviceFacts, num_threads: int) -> str:
    """A digest of an engine and all that it runs on.

    Args:
        manifest: names the engine's bytes by digest.
        device: with the versions of its libraries.
        num_threads: of the engine; 0 leaves it to the library.
    """
    facts = {
        "manifest": manifest.model_dump(mode="json"),
        "device": device.model_dump(mode="json"),
        "num_threads": num_threads,
    }
    return hashlib.sha256(canonical_json(facts)).hexdigest()
