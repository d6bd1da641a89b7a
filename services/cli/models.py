"""`smelt models add` and `smelt models list`."""

import tempfile
from pathlib import Path
from typing import Any

from compiler_worker.master.fingerprint import fingerprint
from compiler_worker.master.opened import open_master
from compiler_worker.master.source import MasterSource, source_from_text
from compiler_worker.plan import buckets_of
from services.cli.control_client import reconcile
from services.cli.fleet_file import find_fleet
from services.cli.output import console, megabytes, print_json, print_table
from services.cli.progress import StepLine, Steps
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRecipeError
from services.contracts.manifest import ModelVersion
from services.contracts.recipe import Recipe
from services.contracts.registry import Registry


def run_models_add(
    settings: CliSettings, name: str, source: str, recipe: Path | None, *, as_json: bool
) -> None:
    """Add a model version and tell a running fleet.

    Raises:
        InvalidModelError: the source cannot become a master.
        InvalidRecipeError: the recipe has a wrong value.
    """
    version = add_model(
        open_registry(settings), name, source, _read_recipe(recipe), Steps(is_quiet=as_json)
    )
    running = find_fleet(settings.run_dir)
    if running is not None and running.store_url == settings.store_url:
        reconcile(running.controller)
    if as_json:
        print_json(_summary(version))
    else:
        console.print(
            f"{name} version {version.version}: master {version.master.digest[:12]}, opset "
            f"{version.master.opset}, {version.master.num_parameters:,} parameters\n"
            f"build its engines: smelt build {name}"
        )


def run_models_list(settings: CliSettings, *, as_json: bool) -> None:
    """Print the newest version of each model."""
    registry = open_registry(settings)
    newest = [registry.model_version(name) for name in registry.model_names()]
    if as_json:
        print_json({"models": [_summary(version) for version in newest]})
        return
    print_table("Models", ("model", "version", "master", "opset", "size", "source"), [
        (v.name, str(v.version), v.master.digest[:12], str(v.master.opset),
         megabytes(sum(ref.num_bytes for ref in v.master.files.values())), v.source)
        for v in newest
    ])  # fmt: skip


def add_model(
    registry: Registry, name: str, source_text: str, recipe: Recipe | None, steps: Steps
) -> ModelVersion:
    """Open a source as a master and publish it; the same source is not opened again.

    Raises:
        InvalidModelError: the source cannot become a master.
        InvalidRecipeError: the recipe does not fit the master.
    """
    source = source_from_text(source_text)
    with steps.step(f"Model {name}") as line:
        source_print = fingerprint(source)
        known = registry.find_source(source_print)
        if known is not None and recipe is None and known.name == name:
            line.summary = f"version {known.version}, unchanged"
            return known
        version = _publish(registry, name, source, source_print, recipe, line)
        line.summary = f"version {version.version}"
        return version


def _publish(
    registry: Registry,
    name: str,
    source: MasterSource,
    source_print: str,
    recipe: Recipe | None,
    line: StepLine,
) -> ModelVersion:
    with tempfile.TemporaryDirectory(prefix="smelt-master-") as folder:
        opened = open_master(source, Path(folder), line.update)
        line.update("publishing the master")
        master = registry.publish_master(opened)
        chosen = recipe or opened.recipe or Recipe()
        # A recipe that does not fit is refused before the version exists.
        buckets_of(master, chosen)
        return registry.add_model_version(
            name=name,
            master=master,
            recipe=chosen,
            source=str(source),
            source_fingerprint=source_print,
            samples=opened.samples,
        )


def _read_recipe(path: Path | None) -> Recipe | None:
    if path is None:
        return None
    try:
        return Recipe.from_yaml(path.read_text())
    except OSError as error:
        raise InvalidRecipeError(f"recipe {path}: {error.strerror}") from error


def _summary(version: ModelVersion) -> dict[str, Any]:
    return {
        "name": version.name,
        "version": version.version,
        "master_digest": version.master.digest,
        "opset": version.master.opset,
        "num_parameters": version.master.num_parameters,
        "inputs": [spec.model_dump() for spec in version.master.inputs],
        "outputs": [spec.model_dump() for spec in version.master.outputs],
        "source": version.source,
        "created_at": version.created_at,
    }
