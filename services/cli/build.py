"""`smelt build`: build, prove and publish what a model lacks, with progress."""

from collections.abc import Sequence

from compiler_worker.devices import local_devices
from compiler_worker.pipeline import BuildReport, build_model
from compiler_worker.plan import Wanted
from compiler_worker.report import report_document, report_lines
from compiler_worker.requests import ChildEvent
from compiler_worker.settings import settings_from_environment
from compiler_worker.workshop import Workshop
from services.cli.control_client import tell_fleet
from services.cli.output import console, print_json
from services.cli.progress import StepLine, Steps
from services.cli.registry import open_registry_to_publish
from services.cli.settings import CliSettings
from services.contracts.build_key import BuildKey
from services.contracts.errors import InvalidRequestError
from services.contracts.hardware import Generation
from services.contracts.kinds import EngineKind
from services.contracts.manifest import ModelVersion
from services.contracts.registry import Registry


def run_build(
    settings: CliSettings,
    name: str,
    generations: Sequence[str],
    kinds: Sequence[str],
    *,
    as_json: bool,
) -> int:
    """Build for the newest version of a model; the exit code is 1 when a build failed.

    Raises:
        NotFoundError: no such model.
        InvalidRequestError: an unknown generation or kind.
    """
    registry = open_registry_to_publish(settings)
    version = registry.model_version(name)
    steps = Steps(is_quiet=as_json)
    report = build_engines(settings, registry, version, wanted_from(generations, kinds), steps)
    tell_fleet(settings)
    if as_json:
        print_json(report_document(report))
    else:
        for line in report_lines(report):
            console.print(line, markup=False, soft_wrap=True)
    return 0 if report.is_success else 1


def build_engines(
    settings: CliSettings, registry: Registry, version: ModelVersion, wanted: Wanted, steps: Steps
) -> BuildReport:
    """Build what is missing; published engines are kept."""
    with steps.step(f"Engines of {version.name}") as line:
        compiler = settings_from_environment(
            store_url=settings.store_url, cache_dir=settings.cache_dir
        )
        workshop = Workshop(
            registry=registry,
            settings=compiler,
            devices=local_devices(compiler.device_generation),
            on_progress=lambda key, event: _show_event(line, key, event),
        )
        report = build_model(version, wanted, workshop)
        line.summary = f"{len(report.records)} built, {len(report.up_to_date)} up to date"
    return report


def wanted_from(generations: Sequence[str], kinds: Sequence[str]) -> Wanted:
    """What the options ask for; raises InvalidRequestError naming what is known."""
    unknown = sorted(set(kinds) - {kind.value for kind in EngineKind})
    if unknown:
        known = ", ".join(kind.value for kind in EngineKind)
        raise InvalidRequestError(f"--kind {unknown[0]}: expected one of {known}")
    return Wanted(
        generations=tuple(Generation.parse(text) for text in generations),
        kinds=tuple(EngineKind(kind) for kind in kinds),
    )


def _show_event(line: StepLine, key: BuildKey, event: ChildEvent) -> None:
    what = f"{key.generation} {key.kind} {key.precision}"
    if event.stage is not None:
        line.update(f"{what}: {event.stage}")
    elif event.line:
        line.show(f"{what}: {event.line}")
