"""From a source to a published version."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from compiler_worker.children.requests import CheckedFile, CheckRequest
from compiler_worker.master.dimensions.named_dim import OTHERWISE
from compiler_worker.master.fingerprint import fingerprint
from compiler_worker.master.hub.folder import HubFolder, read_hub_folder
from compiler_worker.master.opened import MODEL_FILE, CheckDims, OpenedMaster, open_master
from compiler_worker.master.samples import check_samples, read_samples, recipe_with_words
from compiler_worker.master.source import (
    HubModel,
    MasterSource,
    OnnxFile,
    TritonModel,
    source_from_text,
)
from compiler_worker.master.zipmaps import common_labels, table_words
from compiler_worker.measures.ranking import require_samples
from compiler_worker.model_checks.accepted_blindness import with_accepted_blindness
from compiler_worker.model_checks.model_run import run_model
from compiler_worker.model_checks.recipe_check import check_recipe
from compiler_worker.plans.build_keys import buckets_of, check_dims
from compiler_worker.precision.calibration import read_calibration, write_calibration
from compiler_worker.settings import settings_from_environment
from services.cli.models.asked_text import AskedText
from services.cli.models.text_source import TextSource, text_source
from services.cli.output.progress import StepLine, Steps
from services.contracts.errors import InvalidRecipeError
from services.contracts.model.default_buckets import dynamic_dims
from services.contracts.model.dim_limits import DimLimits
from services.contracts.model.label_scores import LabelScores
from services.contracts.model.local_master import master_record
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.precision_choice import AUTO, Accuracy
from services.contracts.model.recipe import Recipe
from services.contracts.model.value_limits import limits_of
from services.contracts.registry.numbered_versions import check_model_name
from services.contracts.registry.registry import Registry

# Open, run, compare, publish.
_NUM_PARTS = 4


@dataclass(frozen=True, kw_only=True)
class AddOptions:
    """What the owner gives with a source; None leaves it to the source.

    Attributes:
        samples: a file of real inputs (.npz).
        folder: what paths in the recipe are relative to.
        text: tokenizer and pooling, before what recipe or source say of them.
    """

    recipe: Recipe | None = None
    samples: Path | None = None
    folder: Path = Path()
    text: AskedText = field(default_factory=AskedText)

    @property
    def check_dims(self) -> CheckDims | None:
        """Whether the recipe fits a source of some dimensions; None without one."""
        return partial(check_dims, self.recipe) if self.recipe else None


def add_model(
    registry: Registry, name: str, source_text: str, options: AddOptions, steps: Steps
) -> ModelVersion:
    """Open a source as a master and publish it; the same source is not opened again.

    Args:
        registry: the version is published there.
        name: of the model.
        source_text: an ONNX file, a folder of Hugging Face's layout, `hf://ORG/MODEL`, a factory
            `module:function` or `triton://DIR`.
        options: recipe, samples, text, and the folder that the recipe's paths are relative to.
        steps: show the progress.

    Returns:
        The new version; the newest one where source and options are those that it was made of.

    Raises:
        InvalidRequestError: no model can have such a name.
        InvalidModelError: the source cannot become a master.
        InvalidRecipeError: the recipe or its calibration set does not fit the master.
    """
    check_model_name(name)
    asked = source_from_text(source_text)
    with steps.step(f"Model {name}") as line, ExitStack() as stack:
        hub = _hub_folder(asked, stack, line)
        source = hub.source if hub else asked
        source_print = fingerprint(source)
        is_bare = options == AddOptions() and hub is None
        known = _unchanged(registry, name, source_print) if is_bare else None
        if known is not None:
            line.summary = f"version {known.version}, unchanged"
            return known
        former = registry.readable_versions(name)[0][-1:]
        version = _publish(registry, name, source, source_print, options, hub, line)
        if [each.master.digest for each in former] == [version.master.digest]:
            same = former[0].version
            line.keep(f"version {version.version} has the same master as version {same}")
        if former and not options.recipe and (words := _other_recipe(former[0], version)):
            line.keep(words)
        line.summary = f"version {version.version}"
        return version


def _other_recipe(former: ModelVersion, version: ModelVersion) -> str:
    """In what the recipe of a version without a file differs from the one before it, or ""."""
    keys = Recipe.model_fields
    lost = [key for key in keys if getattr(former.recipe, key) != getattr(version.recipe, key)]
    if not lost:
        return ""
    return (
        f"recipes are not inherited, and that of version {former.version} differs "
        f"({', '.join(lost)}): to use it, give its file, --recipe FILE"
    )


def _hub_folder(asked: MasterSource, stack: ExitStack, line: StepLine) -> HubFolder | None:
    """The folder of Hugging Face's layout that a source is; None where it is none."""
    if isinstance(asked, HubModel):
        from compiler_worker.master.hub.snapshot import fetched

        return stack.enter_context(fetched(asked, line.show))
    is_folder = isinstance(asked, OnnxFile) and asked.path.is_dir()
    return read_hub_folder(asked.path) if isinstance(asked, OnnxFile) and is_folder else None


def add_models(
    registry: Registry, name: str, sources: Sequence[str], options: AddOptions, steps: Steps
) -> list[ModelVersion]:
    """Add sources as versions, oldest first; `add_model` each, and raises as it does.

    Where the last is the newest version already, so are those before it older ones.

    Args:
        registry: the versions are published there.
        name: of the model.
        sources: as `add_model` has them.
        options: given with each of them.
        steps: show the progress.
    """
    if len(sources) > 1 and options == AddOptions():
        last = fingerprint(source_from_text(sources[-1]))
        sources = sources[-1:] if _unchanged(registry, name, last) else sources
    return [add_model(registry, name, each, options, steps) for each in sources]


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
    hub: HubFolder | None,
    line: StepLine,
) -> ModelVersion:
    with tempfile.TemporaryDirectory(prefix="smelt-master-") as folder:
        line.begin(1, _NUM_PARTS)
        taken = _opened(source, options, hub, Path(folder), line)
        opened = taken.opened
        samples = options.samples or opened.samples
        # What does not fit is refused before gigabytes of weights are in the store.
        record = master_record(opened, files={})
        chosen = _checked(record, taken.recipe, samples, opened.dim_limits)
        line.begin(2, _NUM_PARTS, "running the largest sizes")
        settings = settings_from_environment()
        request = CheckRequest(
            master_path=opened.files[MODEL_FILE],
            master=record,
            recipe=chosen,
            limits=dict(opened.dim_limits),
            unnamed=tuple(dim.name for dim in opened.named_dims),
            file=_checked_file(source, taken.unpooled),
            # Proofs compare samples too.
            is_drawn=samples is None,
        )
        shapes = run_model(request, settings)
        for remark in (*taken.words, *shapes.remarks):
            line.keep(remark)
        given = replace(options, samples=samples)
        calibration = _calibration(record, chosen, given, Path(folder) / "calibration", line)
        has_calibration = calibration is not None or chosen.calibration is not None
        chosen = with_accepted_blindness(shapes.recipe, record, has_calibration=has_calibration)
        line.begin(3, _NUM_PARTS, "comparing the fallback's graph with ONNX Runtime")
        from compiler_worker.model_checks.import_verdict import judge_import

        master = request.master_path, record
        verdict = Path(folder) / "verdict"
        judged = judge_import(master, chosen, shapes.buckets, verdict, settings, line.show)
        line.begin(4, _NUM_PARTS, "publishing the master")
        return registry.add_model_version(
            name=name,
            # Last of all: what was refused before leaves nothing in the store.
            master=registry.publish_master(opened),
            recipe=chosen,
            source=(hub and hub.origin) or str(source),
            source_fingerprint=source_print,
            samples=samples,
            calibration=calibration,
            tokenizer=taken.tokenizer,
            dim_limits=_own_limits(opened),
            fallback_verdict=judged.verdict if judged else None,
            fallback_answers=judged.answers if judged else None,
        )


def _opened(
    source: MasterSource, options: AddOptions, hub: HubFolder | None, folder: Path, line: StepLine
) -> TextSource:
    """The master with its recipe, and what was taken without being asked for."""
    opened = open_master(source, folder, line.update, options.check_dims)
    chosen = options.recipe or opened.recipe or Recipe()
    taken = text_source(opened, chosen, options.folder, options.text, hub, folder / "text")
    named = [dim.words for dim in opened.named_dims]
    remarks = opened.remarks if chosen is opened.recipe else ()
    tables = table_words(opened.outputs, opened.classes)
    words = (*remarks, *taken.words, *tables, *named, *([OTHERWISE] if named else []))
    recipe = taken.recipe
    if opened.classes:
        # What ZipMap makes maps of are probabilities.
        labels = recipe.labels or common_labels(opened.classes)
        labelled = {"labels": labels, "label_scores": LabelScores.NONE}
        recipe = recipe.model_copy(update=labelled)
    return replace(taken, words=words, recipe=recipe)


def _own_limits(opened: OpenedMaster) -> dict[str, DimLimits]:
    """Those of dimensions that the master has; a factory may name others too."""
    own = dynamic_dims(opened.inputs)
    return {name: limit for name, limit in opened.dim_limits.items() if name in own}


def _checked_file(source: MasterSource, own: OpenedMaster) -> CheckedFile | None:
    """What is compared of a source that is a file."""
    if (path := _onnx_file(source)) is None:
        return None
    return CheckedFile(
        path=path,
        master_path=own.files[MODEL_FILE],
        master=master_record(own, files={}),
        classes=dict(own.classes),
    )


def _onnx_file(source: MasterSource) -> Path | None:
    """The file that a master was read from; None of one that was exported."""
    if isinstance(source, TritonModel):
        from compiler_worker.master.triton.repository import onnx_file

        return onnx_file(source)
    return source.path if isinstance(source, OnnxFile) else None


def _calibration(
    master: MasterRecord, recipe: Recipe, given: AddOptions, target_dir: Path, line: StepLine
) -> Path | None:
    """What int8 is calibrated with: what the recipe names, or samples where the order decides."""
    if recipe.calibration is not None and recipe.calibration.traffic:
        line.keep(
            "int8 waits for samples of requests: a fleet calibrates with them, without one: smelt "
            "samples calibrate MODEL; how many there are: smelt samples show MODEL"
        )
        return None
    if recipe.calibration is not None:
        return _kept(master, recipe, given.folder / recipe.calibration.path, target_dir)
    is_tried = recipe.precisions == AUTO and recipe.accuracy is not Accuracy.EXACT
    if given.samples is None or not is_tried:
        return None
    if recipe.accuracy is not Accuracy.RANKING:
        line.keep(
            "no int8 engines are built: proofs compare the samples, and only with accuracy: "
            "ranking they calibrate int8 too; else a recipe names what does, calibration: "
            "{path: FILE}"
        )
        return None
    try:
        return _kept(master, recipe, given.samples, target_dir)
    except InvalidRecipeError as error:
        # Samples for proofs may be fewer, or strings.
        line.keep(f"no int8 engines are built: {error}")
        return None


def _kept(master: MasterRecord, recipe: Recipe, path: Path, target_dir: Path) -> Path:
    """A calibration set, checked and in the form in which it is kept."""
    arrays = read_calibration(path, master.inputs, limits_of(master, recipe))
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
    return recipe_with_words(recipe, samples, master.inputs)
