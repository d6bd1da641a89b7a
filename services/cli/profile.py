"""`smelt profile`: what compiling a model changes, as tables and files."""

from pathlib import Path

from compiler_worker.profiling import words
from compiler_worker.profiling.command import profile_model
from compiler_worker.profiling.report import ProfileReport
from compiler_worker.profiling.wishes import ProfileWishes
from compiler_worker.requests import ChildEvent
from compiler_worker.settings import settings_from_environment
from compiler_worker.station import new_workshop
from compiler_worker.workshop import ignore_progress
from services.cli.output import console, print_json, print_table
from services.cli.progress import Steps
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError
from services.contracts.kinds import Precision


def run_profile(
    settings: CliSettings, name: str, version: int | None, wishes: ProfileWishes, *, as_json: bool
) -> None:
    """Profile one bucket of a model version in a process of its own, and show the report.

    Raises:
        NotFoundError: no such model, version or bucket.
        InvalidModelError: the source is none, or the importer refuses the master.
        BuildError: this machine has no Inductor engine in that precision, or Inductor failed.
    """
    registry = open_registry(settings)
    model_version = registry.model_version(name, version)
    compiler = settings_from_environment(store_url=settings.store_url, cache_dir=settings.cache_dir)
    workshop = new_workshop(registry, compiler, ignore_progress)
    with Steps(is_quiet=as_json).step(f"Profile of {name}") as line:

        def show(event: ChildEvent) -> None:
            if event.line:
                line.update(event.line)

        report = profile_model(model_version, wishes, workshop, show)
        line.summary = f"{report.before.num_ops} ops, {report.after.num_ops} kernels"
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        _print(report)


def wishes_from(bucket: str, precision: str, source: str, out: Path | None) -> ProfileWishes:
    """What the options ask for; raises InvalidRequestError naming the known precisions."""
    if precision not in set(Precision):
        known = ", ".join(Precision)
        raise InvalidRequestError(f"--precision {precision}: expected one of {known}")
    return ProfileWishes(bucket=bucket, precision=Precision(precision), source=source, out=out)


def _print(report: ProfileReport) -> None:
    _line(words.title(report))
    print_table("The whole model", words.SUMMARY_COLUMNS, words.summary_rows(report))
    print_table("What was fused", words.FUSION_COLUMNS, words.fusion_rows(report))
    for note in [words.measured_line(report), *words.notes(report)]:
        _line(note)
    if report.source is not None:
        _line(words.source_line(report.source))
        print_table("Graph breaks", words.BREAK_COLUMNS, words.break_rows(report.source))
    for line in words.file_lines(report):
        _line(line)


def _line(text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
