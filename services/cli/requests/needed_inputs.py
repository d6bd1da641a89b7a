"""What inputs a model has, for who gave none: names, datatypes, shapes, and a command to try."""

import json
import math
import shlex
import sys
from collections.abc import Sequence

import numpy as np

from compiler_worker.inputs.integer_draws import drawn_role
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE
from services.contracts.model.input_values import Choices
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import InputRole
from services.contracts.model.text_input import IDS, TEXT
from services.engines.shapes import put_first, ranges_text, volume
from services.pb import open_inference_v2_pb2 as pb

_STRINGS = "BYTES"
_MOST_TYPED = 64
_Tensor = pb.ModelMetadataResponse.TensorMetadata


def needed_inputs_words(
    model: pb.ModelMetadataResponse, options: Sequence[str], known: ModelVersion | None = None
) -> str:
    """The inputs, and commands that run as printed.

    Args:
        model: as a gateway describes it.
        options: others that were given to `smelt infer`, for the command.
        known: what the store says of it, which has names and ranges of its dimensions.
    """
    specs = {spec.name: spec.shape for spec in known.master.inputs} if known else {}
    lines = [
        f"{each.name}  {each.datatype}  [{', '.join(map(str, specs.get(each.name, each.shape)))}]"
        for each in model.inputs
    ]
    meaning = "-1 is a size that requests choose"
    if known:
        model = _sized(model, known)
        meaning = f"sizes: {' or '.join(ranges_text(each.dims) for each in known.buckets)}"
    # What comes in place of the others is a command of its own.
    has_tokens = any(each.name == IDS for each in model.inputs)
    text = [each for each in model.inputs if each.name == TEXT and has_tokens]
    needed = [each for each in model.inputs if each not in text]
    typed = {each.name: _typed(each, _choices(each.name, known)) for each in needed}
    arrays = [each for each in needed if not typed[each.name]]
    given = [
        word
        for each in needed
        for word in ("--input", f"{each.name}={typed[each.name] or f'@{_file(each)}'}")
    ]
    commands = [_saving_command(arrays, known)] if arrays else []
    start = ["smelt", "infer", model.name, *options]
    commands.append(shlex.join([*start, *given]))
    if text:
        words = ["--text", "a text"] * max(text[0].shape[-1], 1)
        commands.append(f"{shlex.join([*start, *words])}  # in place of the others")
    head = (
        f"smelt infer {model.name}: give each input by --input NAME=@FILE.npy or as JSON, "
        f"NAME='[[1, 2]]'; the model has (name, datatype, shape; {meaning}):"
    )
    return "\n  ".join((head, *lines, "for example:", *commands))


def _sized(model: pb.ModelMetadataResponse, known: ModelVersion) -> pb.ModelMetadataResponse:
    """The model with sizes of a small request in place of -1: one row, all else as is usual."""
    dims = min(known.buckets, key=volume).dims
    rows = known.recipe.batching.batch_dim
    sizes = {name: max(r.min, 1) if name == rows else r.opt for name, r in dims.items()}
    sized = pb.ModelMetadataResponse()
    sized.CopyFrom(model)
    of = {spec.name: spec.shape for spec in known.master.inputs}
    for each in sized.inputs:
        shape = of.get(each.name, each.shape)
        each.shape[:] = [sizes.get(dim, 1) if isinstance(dim, str) else dim for dim in shape]
    return sized


def _choices(name: str, known: ModelVersion | None) -> Choices:
    values = known.master.input_values.get(name) if known else None
    return values.choices_beside(known.recipe.inputs.get(name)) if known and values else ()


def _typed(tensor: _Tensor, choices: Choices) -> str:
    """The value as JSON, of strings and of a few categories; "" of what a file has to hold."""
    is_few = any(choices) and math.prod(_sizes(tensor)) <= _MOST_TYPED
    if tensor.datatype != _STRINGS and not is_few:
        return ""
    value = np.full(_sizes(tensor), "text" if tensor.datatype == _STRINGS else 1, dtype=object)
    put_first(value, choices)
    return json.dumps(value.tolist(), ensure_ascii=False)


def _saving_command(tensors: Sequence[_Tensor], known: ModelVersion | None) -> str:
    # In double quotes, as the shell has the whole in single ones.
    saved = (
        f"np.save({json.dumps(_file(each))}, "
        f'np.{_filling(each.name, known)}({_sizes(each)}, "{_dtype_name(each)}"))'
        for each in tensors
    )
    return shlex.join([sys.executable, "-c", f"import numpy as np; {'; '.join(saved)}"])


def _filling(name: str, known: ModelVersion | None) -> str:
    """Ones, also of a mask, unless its 1 is padding: with nothing valid all answers are NaN."""
    own = known.recipe.inputs.get(name) if known else None
    if known is None or own is None or not own.marks_padding:
        return "ones"
    is_mask = drawn_role(known.master, known.recipe, name) is InputRole.MASK
    return "zeros" if is_mask else "ones"


def _dtype_name(tensor: _Tensor) -> str:
    return str(NUMPY_FROM_DATATYPE[tensor.datatype])


def _file(tensor: _Tensor) -> str:
    # A tensor's name may hold what separates folders.
    return f"{tensor.name.replace('/', '_')}.npy"


def _sizes(tensor: _Tensor) -> tuple[int, ...]:
    return tuple(max(size, 1) for size in tensor.shape)
