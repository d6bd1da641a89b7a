"""`smelt models add`: from a source to a published version."""

import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from compiler_worker.inputs.integer_draws import undescribed
from compiler_worker.master.fingerprint import fingerprint
from compiler_worker.master.opened import open_master
from compiler_worker.master.samples import check_samples, read_samples, recipe_with_words
from compiler_worker.master.source import MasterSource, source_from_text
from compiler_worker.master.stored import MODEL_FILE
from compiler_worker.measures.ranking import require_samples
from compiler_worker.model_checks.accepted_blindness import accepted_words, with_accepted_blindness
from compiler_worker.model_checks.import_verdict import judge_import
from compiler_worker.model_checks.recipe_check import check_recipe
from compiler_worker.model_checks.served_shapes import served_shapes
from compiler_worker.plans.build_keys import buckets_of
from compiler_worker.precision.calibration import read_calibration, write_calibration
from compiler_worker.settings import settings_from_environment
from services.cli.fleet.control_client import notify_fleet
from services.cli.models.listing import version_document
from services.cli.output.progress import StepLine, Steps
from services.cli.output.show import show
from services.cli.registry import open_registry_to_publish
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRecipeError
from services.contracts.model.default_buckets import dynamic_dims
from services.contracts.model.dim_limits import DimLimits
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.recipe import Bucket, Recipe
from services.contracts.model.value_limits import limits_of
from services.contracts.registry.model_versions import check_model_name, master_record
from services.contracts.registry.registry import Registry
from services.engines.shapes import ranges_text


def run_models_add(
    settings: CliSettings,
    name: str,
    source: str,
    recipe: Path | None,
    samples: Path | None,
    *,
    as_json: bool,
) -> None:
    """Add a model version and have a running fleet deploy it.

    Raises:
        InvalidModelError: the source cannot become a master, or the samples are not for it.
        InvalidRecipeError: the recipe has a wrong value, or its calibration set is refused.
    """
    # A factory is looked for in the folder that the user is in, as `python -m` would.
    sys.path.insert(0, str(Path.cwd()))
    registry = open_registry_to_publish(settings)
    options = AddOptions(
        recipe=_read_recipe(recipe),
        samples=samples,
        folder=recipe.parent if recipe else Path(),
    )
    version = add_model(registry, name, source, options, Steps(is_quiet=as_json))
    then = "follow it: smelt events" if notify_fleet(settings) else "build its engines: smelt build"
    if name in registry.unloaded_models():
        then = "it is unloaded, and serves after: smelt models load"
    text = [*_text(version), f"{then} {name}"]
    show(version_document(version), text, as_json=as_json)


def _text(version: ModelVersion) -> Iterator[str]:
    master, (bucket, *_) = version.master, version.buckets
    yield (
        f"{version.name} version {version.version}: master {master.digest[:12]}, opset "
        f"{master.opset}, {master.num_parameters:,} parameters"
    )
    yield from (f"input {name}: {values.words}" for name, values in master.input_values.items())
    yield from undescribed(master, version.recipe)
    if bucket.dims and not version.recipe.buckets:
        yield (
            f"serves {ranges_text(bucket.dims)}, as its recipe names no buckets; for other sizes "
            f"add it again with a recipe that has some: --recipe FILE, as in {_as_recipe(bucket)}"
        )
    yield from accepted_words(version.recipe)
    if version.fallback_verdict:
        yield version.fallback_verdict.words


def _as_recipe(bucket: Bucket) -> str:
    line = {"buckets": [bucket.model_dump()]}
    return yaml.safe_dump(line, default_flow_style=True, sort_keys=False, width=math.inf).strip()


@dataclass(frozen=True, kw_only=True)
class AddOptions:
    """What the owner gives with a source; None leaves it to the source.

    Attributes:
        samples: a file of real inputs (.npz).
        folder: what paths in the recipe are relative to.
    """

    recipe: Recipe | None = None
    samples: Path | None = None
    folder: Path = Path()


def add_model(
    registry: Registry, name: str, source_text: str, options: AddOptions, steps: Steps
) -> ModelVersion:
    """Open a source as a master and publish it; the same source is not opened again.

    Raises:
        InvalidRequestError: no model can have such a name.
        InvalidModelError: the source cannot become a master.
        InvalidRecipeError: the recipe or its calibration set does not fit the master.
    """
    check_model_name(name)
    source = source_from_text(source_text)
    with steps.step(f"Model {name}") as line:
        source_print = fingerprint(source)
        known = _unchanged(registry, name, source_print) if options == AddOptions() else None
        if known is not None:
            line.summary = f"version {known.version}, unchanged"
            return known
        version = _publish(registry, name, source, source_print, options, line)
        line.summary = f"version {version.version}"
        return version


def _unchanged(registry: Registry, name: str, source_print: str) -> ModelVersion | None:
    """The newest version of a model if it was made from this source; an older one is history."""
    if name not in registry.model_names():
        return None
    newest = registry.model_version(name)
    # The fingerprint does not cover the calibration file.
    is_same = newest.source_fingerprint == source_print and newest.recipe.calibration is None
    return newest if is_same else None


def _publish(
    registry: Registry,
    name: str,
    source: MasterSource,
    source_print: str,
    options: AddOptions,
    line: StepLine,
) -> ModelVersion:
    with tempfile.TemporaryDirectory(prefix="smelt-master-") as folder:
        opened = open_master(source, Path(folder), line.update)
        chosen = options.recipe or opened.recipe or Recipe()
        samples = options.samples or opened.samples
        # What does not fit is refused before gigabytes of weights are in the store.
        record = master_record(opened, files={})
        chosen = _checked(record, chosen, samples, opened.dim_limits)
        line.update("running the largest sizes")
        master = opened.files[MODEL_FILE], record
        unnamed = [dim.name for dim in opened.named_dims]
        shapes = served_shapes(master, chosen, opened.dim_limits, unnamed)
        for remark in (*(dim.words for dim in opened.named_dims), *shapes.remarks):
            line.keep(remark)
        calibration = _calibration(record, chosen, options.folder, Path(folder) / "calibration")
        line.update("comparing the fallback's graph with ONNX Runtime")
        judged = judge_import(
            master,
            shapes.recipe,
            shapes.buckets,
            Path(folder) / "verdict",
            settings_from_environment(),
            line.show,
        )
        line.update("publishing the master")
        return registry.add_model_version(
            name=name,
            # Last of all: what was refused before leaves nothing in the store.
            master=registry.publish_master(opened),
            recipe=shapes.recipe,
            source=str(source),
            source_fingerprint=source_print,
            samples=samples,
            calibration=calibration,
            # Those of dimensions that the master has; a factory may name others too.
            dim_limits={
                name: limit
                for name, limit in shapes.limits.items()
                if name in dynamic_dims(opened.inputs)
            },
            fallback_verdict=judged.verdict if judged else None,
            fallback_answers=judged.answers if judged else None,
        )


def _calibration(
    master: MasterRecord, recipe: Recipe, source_dir: Path, target_dir: Path
) -> Path | None:
    """The recipe's calibration set, checked and in the form in which it is kept."""
    if recipe.calibration is None:
        return None
    path, limits = source_dir / recipe.calibration.path, limits_of(master, recipe)
    arrays = read_calibration(path, master.inputs, limits)
    target_dir.mkdir()
    return write_calibration(arrays, target_dir)


def _checked(
    master: MasterRecord,
    recipe: Recipe,
    samples_path: Path | None,
    limits: Mapping[str, DimLimits],
) -> Recipe:
    """The recipe as it is kept, once it and the samples fit the master."""
    check_recipe(master, recipe)
    buckets = buckets_of(master, recipe, limits)
    samples = read_samples(samples_path) if samples_path else None
    if samples is not None:
        check_samples(samples, master.inputs, limits_of(master, recipe))
    require_samples(samples, master, recipe, buckets)
    kept = with_accepted_blindness(recipe, master)
    return recipe_with_words(kept, samples, master.inputs)


def _read_recipe(path: Path | None) -> Recipe | None:
    if path is None:
        return None
    try:
        return Recipe.from_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRecipeError(f"recipe {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRecipeError(f"recipe {path}: expected a YAML text file: {error}") from error
    except InvalidRecipeError as error:
        raise InvalidRecipeError(f"{path}: {error}") from error
