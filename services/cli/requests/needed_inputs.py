"""What inputs a model has, for who gave none: names, datatypes, shapes, and a command to try."""

import json
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE
from services.contracts.model.text_input import IDS, TEXT
from services.pb import open_inference_v2_pb2 as pb

_STRINGS = "BYTES"
_Tensor = pb.ModelMetadataResponse.TensorMetadata


def needed_inputs_words(model: pb.ModelMetadataResponse, options: Sequence[str]) -> str:
    """The inputs, and commands that run as printed.

    Args:
        model: as a gateway describes it.
        options: others that were given to `smelt infer`, for the command.
    """
    lines = [f"{each.name}  {each.datatype}  {list(each.shape)}" for each in model.inputs]
    # What comes in place of the others is a command of its own.
    has_tokens = any(each.name == IDS for each in model.inputs)
    text = [each for each in model.inputs if each.name == TEXT and has_tokens]
    needed = [each for each in model.inputs if each not in text]
    arrays = [each for each in needed if each.datatype != _STRINGS]
    given = [word for each in needed for word in ("--input", _value(each))]
    commands = [_saving_command(arrays)] if arrays else []
    start = ["smelt", "infer", model.name, *options]
    commands.append(shlex.join([*start, *given]))
    if text:
        words = ["--text", "a text"] * max(text[0].shape[-1], 1)
        commands.append(f"{shlex.join([*start, *words])}  # in place of the others")
    head = (
        f"smelt infer {model.name}: give each input by --input NAME=@FILE.npy or as JSON, "
        "NAME='[[1, 2]]'; the model has (name, datatype, shape; -1 is any size):"
    )
    return "\n  ".join((head, *lines, "for example:", *commands))


def _value(tensor: _Tensor) -> str:
    if tensor.datatype != _STRINGS:
        return f"{tensor.name}=@{_file(tensor)}"
    value: Any = "text"
    for size in reversed(_sizes(tensor)):
        value = [value] * size
    return f"{tensor.name}={json.dumps(value)}"


def _saving_command(tensors: Sequence[_Tensor]) -> str:
    saved = (
        f"np.save({_file(each)!r}, np.ones({_sizes(each)}, {_dtype_name(each)!r}))"
        for each in tensors
    )
    return shlex.join([sys.executable, "-c", f"import numpy as np; {'; '.join(saved)}"])


def _dtype_name(tensor: _Tensor) -> str:
    return str(NUMPY_FROM_DATATYPE[tensor.datatype])


def _file(tensor: _Tensor) -> str:
    # A tensor's name may hold what separates folders.
    return f"{tensor.name.replace('/', '_')}.npy"


def _sizes(tensor: _Tensor) -> tuple[int, ...]:
    return tuple(max(size, 1) for size in tensor.shape)
