"""`smelt recipe init`: a commented recipe for a model, that holds what it has by default."""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from services.cli.output.progress import Steps
from services.cli.output.show import show
from services.cli.recipes.docstrings import attributes, sentence
from services.cli.recipes.recipe_model import RecipeModel, find_recipe_model
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.recipe import InputRole, Recipe

_WIDTH = 88
_HEAD = """\
# Recipe of {title}, as it is by default. Omitted keys keep their defaults.
#   smelt recipe check {path} --model {model}
#   smelt models add {name} {source} --recipe {path}
# An editor completes and checks it after: smelt recipe schema > recipe.schema.json
# yaml-language-server: $schema=recipe.schema.json
"""
# Written out whatever they are; of the others what a model has set, the rest as comments.
_ALWAYS = ("kinds", "precisions", "buckets")
_EXAMPLE = " (Below is an example, not the default.)"
# In place of the docstring, which is written for the reference page.
_MEANINGS = {
    "kinds": "Kinds of engines to try; one that does not apply is skipped with a reason.",
    "precisions": "What engines compute in: auto, which is what each generation has instructions "
    f"for, or a list of {', '.join(Precision)}; each is tried.",
    "tolerances": "How far answers in a precision may be from the reference, in place of the "
    "bounds that smelt why prints.",
    "tasks": "Further measures that every engine has to pass, of what the model is for.",
    "tensorrt": "Options of TensorRT engines.",
    "inductor": "Options of Inductor engines.",
    "buckets": "Shapes to build, prove and serve for; other sizes are refused. By dimension: what "
    "requests may have (min, max), and what kernels are tuned for (opt).",
}


def run_recipe_init(settings: CliSettings, model: str, out: Path) -> None:
    """Write a recipe for a model of the store, or for a source.

    Args:
        settings: where the store is.
        model: name in the store, or a source.
        out: file to be created; never overwritten.

    Raises:
        InvalidRequestError: the file is there already, or cannot be written.
        NotFoundError: the store has no such model.
        InvalidModelError: the source cannot become a master.
    """
    # Before the model is opened, which may take a while.
    if out.exists():
        raise InvalidRequestError(
            f"{out} is there already, and is not replaced; name another file with --out"
        )
    found = find_recipe_model(settings, model, Steps())
    text = recipe_text(found, out)
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidRequestError(f"{out} cannot be written: {error.strerror}") from error
    then = f"{out} has the recipe of {found.title}; once it is edited: smelt recipe check {out}"
    show({"path": str(out), "model": model}, [f"{then} --model {model}"])


def recipe_text(model: RecipeModel, path: Path) -> str:
    """The file's text; read again it gives the model's recipe, with its buckets written out."""
    from compiler_worker.plans.build_keys import buckets_of

    buckets = buckets_of(model.master, model.recipe, model.dim_limits)
    recipe = model.recipe.model_copy(update={"buckets": buckets})
    chosen = recipe.model_dump(mode="json", exclude_defaults=True)
    values = recipe.model_dump(mode="json") | chosen
    head = _HEAD.format(
        title=model.title,
        path=path,
        model=model.name or model.source,
        name=model.name or "NAME",
        source=model.source,
    )
    examples = {key: value for key, value in _examples(model).items() if key not in chosen}
    values |= examples
    fields = (
        _field(
            key, values[key], _EXAMPLE * (key in examples), is_set=key in _ALWAYS or key in chosen
        )
        for key in Recipe.model_fields
    )
    return "\n".join([head, *_interface(model), *fields])


def _examples(model: RecipeModel) -> dict[str, Any]:
    """What fields may look like for this model whose defaults would show nothing."""
    output = model.master.outputs[0].name
    known = model.master.input_values
    roles = {name: str(values.role) for name, values in known.items()}
    mask = next((name for name, role in roles.items() if role == InputRole.MASK), "MASK_INPUT")
    return {
        "inputs": {
            spec.name: {"role": roles.get(spec.name, str(InputRole.VALUES))}
            for spec in model.master.inputs
        },
        "outputs": {output: {"valid_where": mask}},
        "tolerances": {"fp16": {"rel_l2": 5e-3, "max_abs": 1e-2, "cosine_distance": 1e-5}},
        "ranking": {"output": output, "top_k": 10},
        "tasks": [{"metric": "top_k", "output": output, "k": 1, "min_agreement": 0.99}],
        "accuracy": "ranking",
        "calibration": {"path": "rows.npz"},
        "text": {"tokenizer": "tokenizer.json", "pooling": "mean"},
        "labels": ["negative", "positive"],
        "label_scores": "sigmoid",
        "num_replicas": 2,
        "gpu_share": 0.25,
        "residency": "on-demand",
        "sampling": {"rate_per_s": 0.2},
    }


def _interface(model: RecipeModel) -> Iterator[str]:
    yield "# Inputs and outputs of the model:"
    known = model.master.input_values
    for spec in model.master.inputs:
        values = f", {known[spec.name].words}" if spec.name in known else ""
        yield f"#   input {_tensor(spec)}{values}"
    for spec in model.master.outputs:
        yield f"#   output {_tensor(spec)}"
    yield ""


def _tensor(spec: TensorSpec) -> str:
    shape = ", ".join(map(str, spec.shape))
    return f"{spec.name}: {spec.datatype} [{shape}]"


def _field(name: str, value: Any, remark: str, *, is_set: bool) -> str:
    """A field below what it means, and a remark; one that is not set as a comment."""
    meaning = _MEANINGS.get(name) or sentence(attributes(Recipe)[name])
    # Leaves in one line: `batch: {min: 1, opt: 4, max: 8}`. Alone a number would be one, too.
    text = yaml.safe_dump(
        {name: value},
        sort_keys=False,
        default_flow_style=None if isinstance(value, dict | list) else False,
        allow_unicode=True,
    )
    lines = text.splitlines() if is_set else [f"# {line}" for line in text.splitlines()]
    comment = textwrap.wrap(meaning + remark, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    return "\n".join([*comment, *lines, ""])
