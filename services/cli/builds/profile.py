"""`smelt profile`: what compiling a model changes, as tables and files."""

from compiler_worker.children.requests import ChildEvent
from compiler_worker.open_worker import new_worker
from compiler_worker.profiling.profile_job import profile_model
from compiler_worker.profiling.profile_request import ProfileOptions
from compiler_worker.profiling.report_lines import report_parts
from compiler_worker.settings import settings_from_environment
from compiler_worker.worker_context import ignore_progress
from services.cli.output.progress import Steps
from services.cli.output.show import show
from services.cli.registry import open_registry
from services.cli.settings import CliSettings


def run_profile(
    settings: CliSettings, name: str, version: int | None, options: ProfileOptions
) -> None:
    """Profile one bucket of a model version in a process of its own, and show the report.

    Args:
        settings: where store and cache are.
        name: of the model.
        version: None for the newest.
        options: bucket, precision, source and folder.

    Raises:
        NotFoundError: no such model, version or bucket.
        InvalidModelError: the source is none, or the importer refuses the master.
        BuildError: this machine has no Inductor engine in that precision, or Inductor failed.
    """
    registry = open_registry(settings)
    model_version = registry.model_version(name, version)
    compiler = settings_from_environment(store_url=settings.store_url, cache_dir=settings.cache_dir)
    worker = new_worker(registry, compiler, ignore_progress)
    with Steps().step(f"Profile of {name}") as line:

        def progress(event: ChildEvent) -> None:
            if event.line:
                line.update(event.line)

        report = profile_model(model_version, options, worker, progress)
        line.summary = f"{report.before.num_ops} ops, {report.after.num_ops} kernels"
    document = report.model_dump(mode="json")
    show(document, report_parts(report))
