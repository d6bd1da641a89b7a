"""`smelt build`: build, prove and publish what a model lacks, with progress."""

from collections.abc import Iterator, Sequence
from itertools import chain

from compiler_worker.building.build_report import report_document, report_lines
from compiler_worker.building.pipeline import BuildReport, build_model
from compiler_worker.children.requests import ChildEvent
from compiler_worker.open_worker import new_worker
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.settings import settings_from_environment
from services.cli.fleet.control_client import notify_fleet
from services.cli.output.progress import StepLine, Steps
from services.cli.output.show import OUTPUT_FORM, print_error, show
from services.cli.registry import open_registry_to_publish
from services.cli.settings import CliSettings
from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry


def run_build(
    settings: CliSettings, name: str, generations: Sequence[str], kinds: Sequence[EngineKind]
) -> int:
    """Build for the newest version of a model.

    Args:
        settings: where store and fleet are.
        name: of the model.
        generations: empty for this machine's.
        kinds: of engines; empty for the recipe's.

    Returns:
        The exit code: 1 when a build failed, or when nothing that was asked for can be built.

    Raises:
        NotFoundError: no such model.
        InvalidRequestError: an unknown generation, or a kind that the recipe leaves out.
    """
    registry = open_registry_to_publish(settings, must_exist=True)
    version = registry.model_version(name)
    steps = Steps()
    wanted = Wanted(generations=tuple(map(Generation.parse, generations)), kinds=tuple(kinds))
    report = build_engines(settings, registry, version, wanted, steps)
    # Replicas take new engines at once, and not when the controller reads the store next.
    notify_fleet(settings)
    lines = report_lines(report, settings.store_url)
    show(report_document(report), chain(lines, again_lines(registry, report)))
    if not OUTPUT_FORM.get().as_json and not is_anything_there(report):
        print_error(f"no engine of {name} can be built as asked; see the reasons above")
    # A script that needs an engine must not go on without one.
    return 0 if report.is_success and is_anything_there(report) else 1


def is_anything_there(report: BuildReport) -> bool:
    """Whether an engine was tried or is up to date; what was skipped does not count."""
    return bool(report.records or report.up_to_date)


def again_lines(registry: Registry, report: BuildReport) -> Iterator[str]:
    """A line for each key that had failed before and failed again."""
    for digest in (record.key.digest() for record in report.failures):
        if (number := len(registry.build_records(digest))) > 1:
            yield (
                f"{digest[:12]} failed in attempt {number}: each smelt build tries it again; a "
                "controller stops after a few attempts"
            )


def build_engines(
    settings: CliSettings, registry: Registry, version: ModelVersion, wanted: Wanted, steps: Steps
) -> BuildReport:
    """Build what is missing; published engines are kept.

    Args:
        settings: URL of the store and folder of the cache.
        registry: on that store.
        version: of the model.
        wanted: generations and kinds.
        steps: show the progress.

    Returns:
        What was built, proven, kept and refused; builds that fail are in it too.
    """
    with steps.step(f"Engines of {version.name}") as line:
        compiler = settings_from_environment(
            store_url=settings.store_url, cache_dir=settings.cache_dir
        )
        worker = new_worker(registry, compiler, lambda key, event: _show_event(line, key, event))
        report = build_model(version, wanted, worker, line.begin)
        line.summary = _counts(report)
    return report


def _counts(report: BuildReport) -> str:
    num_built = sum(record.outcome.is_good for record in report.records)
    num_refused = len(report.records) - num_built - len(report.failures)
    counts = {"refused by their proofs": num_refused, "failed": len(report.failures)}
    words = [f"{num_built} built", f"{len(report.up_to_date)} up to date"]
    return ", ".join([*words, *(f"{num} {what}" for what, num in counts.items() if num)])


def _show_event(line: StepLine, key: BuildKey, event: ChildEvent) -> None:
    what = f"{key.generation} {key.kind} {key.precision}"
    if event.stage is not None:
        line.update(f"{what}: {event.stage}" + (f": {event.line}" if event.line else ""))
    elif event.line:
        line.show(f"{what}: {event.line}")
