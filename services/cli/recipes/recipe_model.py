"""The model that a recipe is for: one of the store, or a source that is not added yet."""

import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from services.cli.output.progress import Steps
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.contracts.model.dim_limits import DimLimits
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Recipe

_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, kw_only=True)
class RecipeModel:
    """What a recipe has to fit.

    Attributes:
        title: for people.
        name: of a model of the store; "" for a source.
        source: what it was, or would be, made of.
        recipe: that it has now.
        dim_limits: by dimension, what its source allows.
    """

    title: str
    name: str = ""
    source: str
    master: MasterRecord
    recipe: Recipe
    dim_limits: Mapping[str, DimLimits] = field(default_factory=dict)


def find_recipe_model(
    settings: CliSettings,
    model: str,
    steps: Steps,
    recipe: Recipe | None = None,
    folder: Path = Path(),
) -> RecipeModel:
    """The newest version of a model, or what `smelt models add` would make of a source.

    Args:
        settings: where the store is.
        model: name in the store, an ONNX file or a factory `module:function`.
        steps: show the progress of opening a source.
        recipe: to be checked against it; its dimensions are while a source is being opened, and
            its `text` changes the outputs of the source.
        folder: what paths in that recipe are relative to.

    Raises:
        InvalidRecipeError: the recipe has other dimensions than the source, or its text
            contradicts itself.
        NotFoundError: the store has no such model.
        InvalidModelError: the source cannot become a master.
    """
    is_source = model.endswith(".onnx") or not _NAME.fullmatch(model) or Path(model).is_file()
    return _of_source(model, steps, recipe, folder) if is_source else _of_store(settings, model)


def _of_store(settings: CliSettings, name: str) -> RecipeModel:
    version = open_registry(settings).model_version(name)
    return RecipeModel(
        title=f"{name} version {version.version}",
        name=name,
        source=version.source,
        master=version.master,
        recipe=version.recipe,
        dim_limits=version.dim_limits,
    )


def _of_source(text: str, steps: Steps, recipe: Recipe | None, base: Path) -> RecipeModel:
    from compiler_worker.children.requests import CheckRequest
    from compiler_worker.master.opened import MODEL_FILE, open_master
    from compiler_worker.master.source import source_from_text
    from compiler_worker.model_checks.model_run import run_model
    from compiler_worker.plans.build_keys import check_dims
    from compiler_worker.settings import settings_from_environment
    from services.cli.models.asked_text import AskedText
    from services.cli.models.text_source import text_source
    from services.contracts.model.local_master import master_record

    # A factory is looked for in the folder that the user is in, as `models add` does.
    sys.path.insert(0, str(Path.cwd()))
    source = source_from_text(text)
    with steps.step(f"Model {text}") as line, tempfile.TemporaryDirectory() as folder:
        given_dims = partial(check_dims, recipe) if recipe else None
        opened = open_master(source, Path(folder), line.update, given_dims)
        work_dir = Path(folder) / "text"
        pooled_by = recipe or Recipe()
        opened = text_source(opened, pooled_by, base, AskedText(), None, work_dir).opened
        master = master_record(opened, files={})
        line.update("running the largest sizes")
        request = CheckRequest(
            master_path=opened.files[MODEL_FILE],
            master=master,
            recipe=opened.recipe or Recipe(),
            limits=dict(opened.dim_limits),
            unnamed=tuple(dim.name for dim in opened.named_dims),
        )
        shapes = run_model(request, settings_from_environment())
        return RecipeModel(
            title=text,
            source=text,
            master=master,
            recipe=shapes.recipe,
            dim_limits=opened.dim_limits,
        )
