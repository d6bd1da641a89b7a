"""Whether a recipe fits the model that it is for: found before anything is built.

A wrong name would not stop a proof, it would hollow it out: an input whose role is lost is
drawn as plain numbers, an output whose mask is lost is compared where nothing is valid.
"""

from collections.abc import Iterable

from pydantic import ValidationError

from compiler_worker.inputs.integer_draws import drawn_role
from compiler_worker.proof.sabotages import OF_FLOATS, OF_INTEGERS
from services.contracts.errors import InvalidRecipeError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.byte_strings import BYTES
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE
from services.contracts.model.input_values import InputValues, IntegerSpan
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.precision_choice import AUTO
from services.contracts.model.recipe import CALIBRATION_FIX, InputRecipe, InputRole, Recipe
from services.contracts.model.task_recipe import BoxTask, FunctionTask, Task, TopKTask
from services.contracts.text.nearest import nearest


def check_recipe(master: MasterRecord, recipe: Recipe) -> None:
    """Check every name in a recipe but those of buckets, which `build_keys.buckets_of` checks.

    Raises:
        InvalidRecipeError: it names an input or output that the master lacks, limits the values
            of an input that holds no integers, draws from an empty range, takes integers that the
            graph does not, accepts blindness to a fault that no proof has, names a
            `valid_where` that is no mask of the output's leading dimensions, a ranking output that
            is no embedding, or a task's that cannot be what the task compares; says of strings
            what is for numbers, or the other way round; or it asks for a calibrated precision and
            names no calibration set.
    """
    _check_calibration(master, recipe)
    inputs = _by_name(master.inputs)
    outputs = _by_name(master.outputs)
    _check_names("inputs", recipe.inputs, inputs)
    _check_names("outputs", recipe.outputs, outputs)
    if recipe.sampling is not None:
        _check_names("sampling.drop", recipe.sampling.drop, inputs)
        _check_names("sampling.hash", recipe.sampling.hash, inputs)
    for name, input_recipe in recipe.inputs.items():
        _check_limits(inputs[name], input_recipe)
        _check_range(name, input_recipe)
        _check_strings(inputs[name], input_recipe)
        if known := master.input_values.get(name):
            _check_within(name, input_recipe, known)
    for name, output in recipe.outputs.items():
        for precision, faults in output.accept_blind.items():
            _check_blindness(f"outputs.{name}.accept_blind.{precision}", faults)
        if output.valid_where is not None:
            _check_mask(outputs[name], output.valid_where, master, recipe)
    for task in recipe.tasks:
        _check_task(task, outputs)
    if recipe.ranking is not None:
        _check_names("ranking.output", [recipe.ranking.output], outputs)
        _check_is_numbers("ranking.output", outputs[recipe.ranking.output])
        shape = outputs[recipe.ranking.output].shape
        if len(shape) != 2:
            raise InvalidRecipeError(
                f"recipe: ranking.output '{recipe.ranking.output}': expected an embedding "
                f"[batch, D], the model has {list(shape)}"
            )


def _check_task(task: Task, outputs: dict[str, TensorSpec]) -> None:
    """A function that is named is not imported here: only proofs run an owner's code."""
    if isinstance(task, FunctionTask):
        return
    _check_names(f"tasks.{task.metric}.output", [task.output], outputs)
    _check_is_numbers(f"tasks.{task.metric}.output", outputs[task.output])
    shape = outputs[task.output].shape
    classes = shape[-1] if shape else 0
    if isinstance(task, TopKTask) and isinstance(classes, int) and 0 < classes <= task.k:
        raise InvalidRecipeError(
            f"recipe: tasks.top_k.k: the best {task.k} of the {classes} classes of output "
            f"'{task.output}' are all of them, whatever an engine answers; name fewer"
        )
    is_wrong = isinstance(task, BoxTask) and shape[-1:] != (4,)
    if len(shape) < 1 or is_wrong:
        wanted = "boxes [..., 4]" if isinstance(task, BoxTask) else "scores [..., classes]"
        raise InvalidRecipeError(
            f"recipe: tasks.{task.metric}.output '{task.output}': expected {wanted}, the model "
            f"has {list(shape)}"
        )


def _check_is_numbers(key: str, spec: TensorSpec) -> None:
    if spec.datatype == BYTES:
        raise InvalidRecipeError(
            f"recipe: {key} '{spec.name}': expected numbers, the model gives strings (BYTES), "
            "which every proof compares exactly"
        )


def _check_calibration(master: MasterRecord, recipe: Recipe) -> None:
    """Never calibrated on drawn numbers: their scales would fit no real request."""
    listed = () if recipe.precisions == AUTO else recipe.precisions
    wanting = [precision for precision in listed if precision.is_calibrated]
    strings = [spec.name for spec in master.inputs if spec.datatype == BYTES]
    if wanting and strings:
        raise InvalidRecipeError(
            f"recipe: precision {wanting[0]}: input '{strings[0]}' is strings (BYTES), and models "
            f"of strings are built in {Precision.FP32} alone; take {wanting[0]} out"
        )
    if recipe.calibration and recipe.calibration.traffic:
        kept = recipe.sampling
        if kept is None or kept.drop or kept.hash:
            raise InvalidRecipeError(
                "recipe: calibration: traffic needs whole rows; expected `sampling: {}` "
                f"without drop and hash, got {'no sampling' if kept is None else 'some of them'}"
            )
    if wanting and recipe.calibration is None:
        raise InvalidRecipeError(f"recipe: precision {wanting[0]}: {CALIBRATION_FIX}")


def _by_name(specs: Iterable[TensorSpec]) -> dict[str, TensorSpec]:
    return {spec.name: spec for spec in specs}


def _check_names(key: str, names: Iterable[str], known: dict[str, TensorSpec]) -> None:
    for name in names:
        if name not in known:
            raise InvalidRecipeError(
                f"recipe: {key}: '{name}' is not in the model{nearest(name, known)}; expected one "
                f"of {', '.join(known)}"
            )


def _check_limits(spec: TensorSpec, recipe: InputRecipe) -> None:
    is_limited = (recipe.min, recipe.max) != (None, None)
    if (
        is_limited
        and spec.datatype != BYTES
        and NUMPY_FROM_DATATYPE[spec.datatype].kind not in "iu"
    ):
        raise InvalidRecipeError(
            f"recipe: inputs.{spec.name}: min and max are for integers, the model takes "
            f"{spec.datatype}; take them out"
        )


def _check_range(name: str, recipe: InputRecipe) -> None:
    if recipe.high is not None and not recipe.low < recipe.high:
        raise InvalidRecipeError(
            f"recipe: inputs.{name}: expected low < high, got low {recipe.low:g} and high "
            f"{recipe.high:g}: there is nothing between them to draw"
        )


def _check_blindness(key: str, accepted: Iterable[str]) -> None:
    known = OF_FLOATS | OF_INTEGERS
    for fault in accepted:
        if fault not in known:
            raise InvalidRecipeError(
                f"recipe: {key}: unknown fault '{fault}'"
                f"{nearest(fault, known)}; expected of {', '.join(known)}"
            )


def _check_within(name: str, recipe: InputRecipe, known: InputValues) -> None:
    """A recipe may narrow what the graph takes; what it draws and pads with has to lie inside."""
    key = f"recipe: inputs.{name}"
    legal = f"the model takes {known.words}"
    own = IntegerSpan(min=recipe.min, max=recipe.max)
    both = own.within(known.widest)
    for end, asked, found in (("min", own.min, both.min), ("max", own.max, both.max)):
        if asked is not None and asked != found:
            raise InvalidRecipeError(
                f"{key}: {end} is {asked}, but {legal}: a recipe may only narrow that"
            )
    for span in known.allowed:
        # The recipe's own validation once more, with the graph's limits in it: what is drawn and
        # padded with has to lie within.
        limits = span.within(own).model_dump()
        try:
            InputRecipe.model_validate(recipe.model_dump() | limits)
        except ValidationError as error:
            raise InvalidRecipeError(f"{key}: {error.errors()[0]['msg']} ({legal})") from error


def _check_strings(spec: TensorSpec, recipe: InputRecipe) -> None:
    """What describes numbers is not for strings, and the other way round."""
    key = f"recipe: inputs.{spec.name}"
    if spec.datatype != BYTES:
        if recipe.values is not None:
            raise InvalidRecipeError(
                f"{key}: values are for strings, the model takes {spec.datatype}; low and high "
                "bound the numbers that are drawn"
            )
        return
    default = InputRecipe()
    for name in ("role", "low", "high", "pad", "min", "max"):
        if getattr(recipe, name) != getattr(default, name):
            raise InvalidRecipeError(
                f"{key}: {name} is for numbers, the model takes strings (BYTES), which are drawn "
                "from values and never padded: requests of different lengths are not joined; "
                "take it out"
            )


def _check_mask(output: TensorSpec, mask: str, master: MasterRecord, recipe: Recipe) -> None:
    inputs = _by_name(master.inputs)
    key = f"outputs.{output.name}.valid_where"
    _check_names(key, [mask], inputs)
    if drawn_role(master, recipe, mask) is not InputRole.MASK:
        raise InvalidRecipeError(
            f"recipe: {key}: '{mask}' is drawn as values, a mask is wanted; add to the recipe: "
            f"inputs: {{{mask}: {{role: mask}}}}"
        )
    if recipe.inputs.get(mask, InputRecipe()).marks_padding:
        raise InvalidRecipeError(
            f"recipe: {key}: '{mask}' marks padding (pad: 1), a mask of what is valid is wanted"
        )
    shape = inputs[mask].shape
    if output.shape[: len(shape)] != shape:
        raise InvalidRecipeError(
            f"recipe: {key}: '{mask}' is {list(shape)}, the leading dimensions of "
            f"{list(output.shape)} are wanted"
        )
