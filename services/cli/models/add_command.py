"""`smelt models add`: what can be refused at once is, before what opens models is imported."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from compiler_worker.master.source import MasterSource, OnnxFile, TritonModel, source_from_text
from services.cli.models.asked_text import AskedText
from services.cli.oci.artifact_reference import OCI_SCHEME, OciReference, parse_reference
from services.cli.output.progress import Steps
from services.cli.output.show import show
from services.cli.recipes.recipe_file import read_recipe, recipe_place
from services.cli.registry import open_registry_to_publish
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.numbered_versions import check_model_name
from services.contracts.registry.registry import Registry
from services.contracts.text.words import counted


def run_models_add(
    settings: CliSettings,
    name: str,
    source: str,
    recipe: Path | None,
    samples: Path | None,
    text: AskedText,
) -> None:
    """Add a model version and have a running fleet deploy it.

    Args:
        settings: where store and fleet are.
        name: of the model.
        source: as `add_model` has it; of `triton://DIR` each version that Triton would serve
            is added; or an artifact `oci://...`, which brings its engines.
        recipe: its file; None for the recipe by default.
        samples: real inputs (.npz) for the recipe's task; None for a recipe without one.
        text: tokenizer and pooling.

    Raises:
        InvalidModelError: the source cannot become a master, or the samples are not for it.
        InvalidRecipeError: the recipe has a wrong value, or its calibration set is refused; with
            file and line where a recipe's file is given.
    """
    check_model_name(name)
    place = _artifact(source, has_options=bool(recipe or samples or text != AskedText()))
    parsed = None if place else source_from_text(source)
    sources = _sources(source, parsed)
    # A factory is looked for in the folder that the user is in, as `python -m` would.
    sys.path.insert(0, str(Path.cwd()))
    given = read_recipe(recipe) if recipe else None
    registry = open_registry_to_publish(settings)
    from services.cli.fleet.control_client import notify_fleet
    from services.cli.models.add import AddOptions, add_models
    from services.cli.models.added_words import added_words
    from services.cli.models.listing import version_document
    from services.cli.oci.pull import Pull

    folder = recipe.parent if recipe else Path()
    options = AddOptions(recipe=given, samples=samples, folder=folder, text=text)
    steps = Steps()
    with recipe_place(recipe, given), _noting_published(registry, name):
        versions = (
            [Pull(place, registry, settings).run(name, steps)]
            if place
            else add_models(registry, name, sources, options, steps)
        )
    has_sizes = bool(place or (given and given.buckets))
    # Of files that are the same there is one version here.
    different = {each.version: each for each in versions}.values()
    lines = [w for v in different for w in added_words(registry, v, has_sizes=has_sizes)]
    if isinstance(parsed, TritonModel):
        lines += _triton_words(sources, versions)
    has_fleet = notify_fleet(settings)
    lines += _engine_words(registry, versions[-1], is_pulled=bool(place), has_fleet=has_fleet)
    show(version_document(versions[-1]), lines)


def _triton_words(sources: Sequence[str], versions: Sequence[ModelVersion]) -> Iterator[str]:
    """Which version of Triton's is which; older ones may have been there already."""
    for source, version in zip(sources[-len(versions) :], versions, strict=True):
        yield f"{source} is version {version.version} here"


def _engine_words(
    registry: Registry, version: ModelVersion, *, is_pulled: bool, has_fleet: bool
) -> Iterator[str]:
    """How many engines came with it, and the next command."""
    num_engines = len(registry.engines(version.master.digest)) if is_pulled else 0
    if num_engines:
        yield f"the store has {counted(num_engines, 'engine')} of it"
    if version.name in registry.unloaded_models():
        then = "it is unloaded, and serves after: smelt models load"
    elif has_fleet:
        then = "follow it: smelt events"
    else:
        then = "see its engines: smelt engines" if num_engines else "build its engines: smelt build"
    yield f"{then} {version.name}"


@contextmanager
def _noting_published(registry: Registry, name: str) -> Iterator[None]:
    """Note on a KeyboardInterrupt what was published before it."""
    before = registry.version_numbers(name)
    try:
        yield
    except KeyboardInterrupt as ended:
        new = [f"version {n}" for n in registry.version_numbers(name) if n not in before]
        ended.add_note(f"published: {', '.join(new)}" if new else "nothing was published")
        raise


def _sources(source: str, parsed: MasterSource | None) -> list[str]:
    """Those of the versions that a source has; raises InvalidModelError where it is not there."""
    if isinstance(parsed, OnnxFile):
        parsed.require()
    if isinstance(parsed, TritonModel):
        from compiler_worker.master.triton.repository import versions_of

        return [str(each) for each in versions_of(parsed)]
    return [source]


def _artifact(source: str, *, has_options: bool) -> OciReference | None:
    """What a source names in a registry; None of any other source."""
    if not source.startswith(OCI_SCHEME):
        return None
    if has_options:
        raise InvalidRequestError(
            f"{source}: its engines were proven with the recipe and samples that it brings; leave "
            "out the options, or add its ONNX file with them"
        )
    return parse_reference(source)
