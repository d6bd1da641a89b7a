"""Compares, when a model is added, the graph of its fallback with ONNX Runtime."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler_worker.children.child_jobs import VERDICT
from compiler_worker.children.process import ChildLimits, run_child
from compiler_worker.children.requests import ChildEvent, VerdictRequest
from compiler_worker.master.admission import NEWEST_RUN_OPSET
from compiler_worker.model_checks.verdict_child import ANSWERS_FILE, without_torch
from compiler_worker.progress import Progress
from compiler_worker.settings import CompilerSettings
from services.contracts.errors import UnsupportedGraphError
from services.contracts.kserve.tensors import strings_among
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, Recipe
from services.contracts.selection.fallback_verdict import FallbackVerdict

# Of the deadline; the rest is for opening three models.
_SHARE_FOR_SAMPLES = 0.125
_WITHOUT = "the fallback serves without that comparison"
_COMPARE_AGAIN = (
    f"{_WITHOUT}; to have it made, remove this version (smelt "
    "models remove NAME --version N) and add the model again where more memory or time is left"
)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict, and the file of kept answers that it goes with; None when there are none."""

    verdict: FallbackVerdict
    answers: Path | None = None


def judge_import(
    opened: tuple[Path, MasterRecord],
    recipe: Recipe,
    buckets: Sequence[Bucket],
    folder: Path,
    settings: CompilerSettings,
    report: Progress,
) -> Judged | None:
    """Compare in a throw-away process; None with a deadline of 0.

    Args:
        opened: the master's `model.onnx`, and its record.
        recipe: how samples are drawn, and which positions count.
        buckets: the sizes that are served.
        folder: where the answers go; it has to outlive their use.
        settings: deadline, memory and threads.
        report: given what is compared.

    Raises:
        UnsupportedGraphError: it is wrong, and of an opset that ONNX Runtime does not have.
    """
    path, master = opened
    if strings := strings_among(master.inputs, master.outputs):
        words = f"{strings} is strings (BYTES), which torch does not have"
        return Judged(verdict=without_torch(words, path, master))
    if not settings.verdict_time_limit_s:
        return None
    request = VerdictRequest(
        master_path=path,
        master=master,
        recipe=recipe,
        buckets=tuple(buckets),
        folder=folder,
        samples_s=settings.verdict_time_limit_s * _SHARE_FOR_SAMPLES,
        num_threads=settings.num_threads,
    )
    judged = _asked(request, settings, report)
    verdict = judged.verdict
    # Below that ONNX Runtime serves as the fallback in the import's place.
    if verdict.refuted and master.opset > NEWEST_RUN_OPSET:
        raise UnsupportedGraphError(
            f"the importer is wrong beside {verdict.witness}, and nothing else serves opset "
            f"{master.opset}: {verdict.refuted}; convert the model to opset {NEWEST_RUN_OPSET} "
            "with onnx.version_converter.convert_version"
        )
    return judged


def _asked(request: VerdictRequest, settings: CompilerSettings, report: Progress) -> Judged:
    """The child's verdict with its answers, or why it has none."""
    limits = ChildLimits(
        time_s=settings.verdict_time_limit_s,
        memory_bytes=settings.memory_limit_bytes,
        time_setting="SMELT_VERDICT_TIME_LIMIT_S",
    )

    def show(event: ChildEvent) -> None:
        if event.line:
            report(event.line)

    request.folder.mkdir()
    outcome = run_child(VERDICT, request, request.folder, limits, show)
    if outcome.result is None:
        # A child that was ended may have left answers too, whole or in part. Without the bounds of
        # its verdict a replica could not use them, and would serve with no fallback at all.
        # What the child reported itself would be so again, except for want of memory.
        is_lasting = outcome.error not in ("", MemoryError.__name__)
        words = _WITHOUT if is_lasting else _COMPARE_AGAIN
        return Judged(verdict=FallbackVerdict(unknown=f"{outcome.failure}; {words}"))
    answers = request.folder / ANSWERS_FILE
    return Judged(verdict=outcome.result, answers=answers if answers.is_file() else None)
