"""Joint runs in the store."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from services.contracts.errors import StoreError
from services.contracts.registry.records import RecordKeeper
from services.contracts.security.provenance import PAYLOAD_TYPE, Envelope
from services.contracts.selection.joint_run import JointRun

if TYPE_CHECKING:  # it needs a library of cryptography, which a gateway has not
    from services.contracts.security.signing import TrustRoot

_logger = logging.getLogger(__name__)


class JointRegistry(RecordKeeper):
    """Keeps which engines were timed together, and finds them."""

    def add_joint_run(self, run: JointRun) -> int:
        """Keep a run; returns its number."""
        folder = f"{_prefix(run.master_digest)}{run.device.generation}/"
        return self._records.append(folder, run)

    def joint_runs(self, master_digest: str, trust: TrustRoot | None = None) -> list[JointRun]:
        """The runs of a master, oldest first in each generation.

        Args:
            master_digest: of the master.
            trust: with it, runs without a signature that counts are left out.
        """
        found = (self._joint_run(key) for key in self.joint_run_keys(master_digest))
        return [run for run in found if run and _is_trusted(run, master_digest, trust)]

    def joint_run_keys(self, master_digest: str) -> list[str]:
        """The names of a master's runs: they show a new one without reading any."""
        return self._records.keys(_prefix(master_digest))

    def _joint_run(self, key: str) -> JointRun | None:
        try:
            return self._records.read(key, JointRun)
        except StoreError as error:
            # Of a newer compiler, which must not stop the fleet: engines have their proofs.
            _logger.warning("a joint run is left out: %s", error)
            return None


def _is_trusted(run: JointRun, master_digest: str, trust: TrustRoot | None) -> bool:
    if run.master_digest != master_digest:
        return False
    if trust is None:
        return True
    signature = run.signature
    if signature is None:
        return False
    signed = Envelope(payload_type=PAYLOAD_TYPE, payload="", signatures=(signature,))
    return not trust.fault(signed, signature.keyid, run.payload())


def _prefix(master_digest: str) -> str:
    return f"joint_runs/{master_digest}/"
