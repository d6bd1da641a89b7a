"""Which kinds of engines cannot take a master, found before anything is built.

Strings are for ONNX Runtime alone, which has no opset above 26 and computes trees in fp32 alone,
and TensorRT and OpenVINO have the ops of ai.onnx alone. For the others the importer itself runs,
once per master, in a child process: an untrusted graph that crashes it ends that process alone.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from compiler_worker.children.child_jobs import IMPORT
from compiler_worker.children.process import run_child
from compiler_worker.children.requests import ImportRequest, ImportVerdict
from compiler_worker.plans.graph_refusals import GraphOps, graph_refusal, ops_of_graph
from compiler_worker.references.reference import importer_digest
from compiler_worker.work_folder import work_folder
from compiler_worker.worker_context import MASTER_FILE, WorkerContext
from services.contracts.errors import SmeltError
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import MasterRecord
from services.contracts.store.kept_files import keep, read_kept


@dataclass(frozen=True)
class Refusals:
    """Why a kind cannot take one master, "" where it can or that is not known yet.

    Attributes:
        master: its record.
        worker: whose cache and limits are used.
        kinds: that the importer may run for, all by default; of others only a verdict that
            is in the cache counts.
    """

    master: MasterRecord
    worker: WorkerContext
    kinds: Collection[EngineKind] = ()

    def reason(self, kind: EngineKind, precision: Precision) -> str:
        """Return why a kind cannot take the master so; "" leaves it to the build."""
        is_asked = kind in (self.kinds or EngineKind)

        def import_refusal() -> str:
            verdict = self._verdict if is_asked else self._kept_verdict
            return verdict.refusal if verdict else ""

        try:
            return graph_refusal(kind, precision, self.master, lambda: self._ops, import_refusal)
        except (SmeltError, OSError):
            # A store that fails now fails the build too, which reports it.
            return ""

    @cached_property
    def _path(self) -> Path:
        return self.worker.registry.materialise_master(self.master) / MASTER_FILE

    @cached_property
    def _ops(self) -> GraphOps:
        import onnx

        return ops_of_graph(onnx.load(self._path, load_external_data=False))

    @cached_property
    def _kept(self) -> Path:
        # A verdict is of one importer: other code runs again.
        name = f"{self.master.digest}-{importer_digest()[:16]}.json"
        return self.worker.settings.cache_dir.absolute() / "imports" / name

    @cached_property
    def _kept_verdict(self) -> ImportVerdict | None:
        return read_kept(self._kept, lambda path: ImportVerdict.from_json(path.read_bytes()))

    @cached_property
    def _verdict(self) -> ImportVerdict | None:
        """The kept one, else the importer's; None where that gave none."""
        if self._kept_verdict:
            return self._kept_verdict
        asked = self._asked(self.worker.settings.cache_dir.absolute())
        # Without one nothing is kept: the machine may have been short of memory or time, and the
        # build reports it.
        if asked is not None:
            keep(self._kept, lambda part: part.write_bytes(asked.canonical_json()))
        return asked

    def _asked(self, cache_dir: Path) -> ImportVerdict | None:
        """Import in a child process; None where it crashed, hung or passed its limits."""
        with work_folder(cache_dir / "work", "import-") as folder:
            request = ImportRequest(master_path=self._path)
            limits = self.worker.build_limits
            return run_child(IMPORT, request, folder, limits, lambda _: None).result
