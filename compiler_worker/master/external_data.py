"""External data of an ONNX file: found, inside its folder, and whole."""

import math
from pathlib import Path

import onnx

from compiler_worker.master import walk
from services.contracts.errors import InvalidModelError


def check_external_data(model: onnx.ModelProto, path: Path) -> tuple[Path, ...]:
    """Check every reference out of a model file; return the files, sorted, each once.

    Raises:
        InvalidModelError: a location is empty, absolute or outside the model's folder, its
            file is missing, or the file is shorter than the tensor needs.
    """
    files = set()
    for tensor in walk.tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            files.add(_check_tensor(tensor, path))
    return tuple(sorted(files))


def _check_tensor(tensor: onnx.TensorProto, path: Path) -> Path:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    at = f"{path}: tensor '{tensor.name}'"
    location = _check_location(entries.get("location", ""), path.parent, at)
    offset, length = _check_extent(entries, tensor, at)
    found = location.stat().st_size
    if offset + length > found:
        raise InvalidModelError(
            f"{at}: external data {location.name} is truncated: {found} bytes found, "
            f"{offset + length} wanted; copy the whole file again"
        )
    return location


def _check_location(location: str, folder: Path, at: str) -> Path:
    # A model is untrusted: a location must not read another file of this machine, neither
    # by its own text nor through a symbolic link.
    file = folder / location
    is_inside = file.resolve().is_relative_to(folder.resolve())
    if not location or Path(location).is_absolute() or not is_inside:
        raise InvalidModelError(
            f"{at}: external data location '{location}' found, a relative path inside the "
            "model's folder wanted; put the data file beside the model, and no link to elsewhere: "
            "cp -rL copies a folder with what its links name"
        )
    if not file.is_file():
        raise InvalidModelError(
            f"{at}: external data file '{location}' is missing; copy it beside the model"
        )
    return file


def _check_extent(entries: dict[str, str], tensor: onnx.TensorProto, at: str) -> tuple[int, int]:
    wanted = _num_bytes(tensor, at)
    offset = _number(entries.get("offset", "0"), "offset", at)
    length = _number(entries.get("length", str(wanted)), "length", at)
    if length != wanted:
        raise InvalidModelError(
            f"{at}: external data length {length} found, {wanted} wanted for dims "
            f"{list(tensor.dims)}; export the model again"
        )
    return offset, length


def _number(text: str, key: str, at: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidModelError(
            f"{at}: external data {key} '{text}' found, a number of bytes wanted; "
            "export the model again"
        )
    return int(text)


def _num_bytes(tensor: onnx.TensorProto, at: str) -> int:
    # Imports sympy, which takes a third of a second; most files have no external data.
    import onnx_ir as ir

    try:
        bits = ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError) as error:
        raise InvalidModelError(
            f"{at}: data type {tensor.data_type} found, a numeric type of fixed width wanted; "
            "strings cannot be external data"
        ) from error
    return math.ceil(math.prod(tensor.dims) * bits / 8)
