"""What every build of one worker shares."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from compiler_worker.children.process import ChildLimits
from compiler_worker.children.requests import ChildEvent, JointResult
from compiler_worker.devices import Devices, local_devices
from compiler_worker.references.reference_cache import reference_folder, tidy
from compiler_worker.settings import CompilerSettings
from compiler_worker.work_folder import work_folder
from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import EngineManifest, MasterRecord, Proof
from services.contracts.registry.registry import Registry
from services.contracts.security.signing import Signer
from services.contracts.selection.joint_run import JointRun
from services.contracts.text.moments import timestamp
from services.engines.caches.compile_cache import tidy_compile_cache

OnProgress = Callable[[BuildKey, ChildEvent], None]

MASTER_FILE = "model.onnx"


def never_stopped() -> str:
    """For work that no other worker may take over."""
    return ""


def ignore_progress(key: BuildKey, event: ChildEvent) -> None:
    """For callers that show no progress."""


@dataclass(frozen=True, kw_only=True)
class WorkerContext:
    """Registry, settings and devices of a worker, and where it reports progress.

    Attributes:
        signer: signs engines and proofs before they are published; None leaves them unsigned.
        on_progress: called for each event and log line of a child, in the building thread.
        stop_reason: why a child that works now should be ended, "" while it should not;
            called repeatedly.
    """

    registry: Registry
    settings: CompilerSettings
    devices: Devices = field(default_factory=local_devices)
    signer: Signer | None = None
    on_progress: OnProgress = ignore_progress
    stop_reason: Callable[[], str] = never_stopped

    @property
    def build_limits(self) -> ChildLimits:
        """What a build may take."""
        return self._limits(self.settings.build_time_limit_s, "SMELT_BUILD_TIME_LIMIT_S")

    @property
    def proof_limits(self) -> ChildLimits:
        """What a proof with its benchmark may take."""
        return self._limits(self.settings.proof_time_limit_s, "SMELT_PROOF_TIME_LIMIT_S")

    def sign(self, manifest: EngineManifest, proof: Proof, master: MasterRecord) -> None:
        """Sign an engine with a proof and store the signature; without a key nothing is done.

        Args:
            manifest: of the engine.
            proof: signed with it.
            master: the one that the engine was built from.
        """
        if self.signer is not None:
            self.registry.sign(manifest, proof, master, self.signer)

    def joint_run(
        self, result: JointResult, master: MasterRecord, device: DeviceFacts, incumbent: str
    ) -> JointRun:
        """The record of engines that were timed together, signed if there is a key.

        Args:
            result: of the child.
            master: the one that they were built from.
            device: one of this machine.
            incumbent: digest of the one that was best before.
        """
        run = JointRun(
            master_digest=master.digest,
            device=device,
            incumbent=incumbent,
            shapes=result.shapes,
            left_out=result.failed,
            fallback=result.fallback,
            created_at=timestamp(),
        )
        if self.signer is None:
            return run
        (signature,) = self.signer.sign(run.payload()).signatures
        return run.model_copy(update={"signature": signature})

    def work_folder(self, key: BuildKey) -> AbstractContextManager[Path]:
        """A folder for one attempt, removed afterwards; its path is absolute.

        Before it, what earlier attempts kept is brought within its bounds.
        """
        cache_dir = self.settings.cache_dir.absolute()
        tidy(reference_folder(cache_dir))
        tidy_compile_cache(cache_dir)
        return work_folder(cache_dir / "work", f"{key.digest()[:12]}-")

    def _num_builds(self) -> int:
        """How many builds work on this host: each has a work folder, named by its key's digest."""
        return sum(1 for _ in (self.settings.cache_dir / "work").glob(f"{'?' * 12}-*"))

    def _limits(self, time_s: float, setting: str) -> ChildLimits:
        return ChildLimits(
            time_s=time_s,
            memory_bytes=self.settings.memory_limit_bytes,
            time_setting=setting,
            num_builds=self._num_builds,
            stop_reason=self.stop_reason,
        )
