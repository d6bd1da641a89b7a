"""The five kinds of ONNX's backend test suite, as models with inputs and wanted outputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.loader import DATA_DIR, load_model_tests

# "light" are the networks of the kind "real" without their weights: each weight is a constant.
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")


@dataclass(frozen=True, slots=True)
class SuiteCase:
    """One case of the suite.

    Attributes:
        name: the suite's name of it.
        kind: one of `KINDS`.
        model: what is imported.
        data: per data set the inputs and the wanted outputs; an array each, a list of
            arrays for a sequence, None for an optional without an element.
        rtol: relative tolerance the suite allows.
        atol: absolute tolerance the suite allows.
    """

    name: str
    kind: str
    model: onnx.ModelProto
    data: tuple[tuple[list[Any], list[Any]], ...]
    rtol: float
    atol: float


def all_cases(kinds: Sequence[str] = KINDS) -> list[SuiteCase]:
    """Return every case of the kinds, in the suite's order (by name within a kind of files)."""
    return [case for kind in kinds for case in _cases_of(kind)]


def _cases_of(kind: str) -> Iterator[SuiteCase]:
    with warnings.catch_warnings():
        # The suite itself divides by zero and overflows on purpose while it is made.
        warnings.simplefilter("ignore")
        match kind:
            case "node":
                yield from map(_node_case, collect_testcases(None))
            case "light":
                yield from map(_light_case, _sorted_tests("real"))
            case _:
                yield from (_file_case(test, kind) for test in _sorted_tests(kind))


def _sorted_tests(kind: str) -> list[Any]:
    return sorted(load_model_tests(kind=kind), key=lambda test: str(test.name))


def _node_case(test: Any) -> SuiteCase:
    data = tuple(
        (list(map(_value, given)), list(map(_value, want))) for given, want in test.data_sets
    )
    return SuiteCase(test.name, "node", test.model, data, test.rtol, test.atol)


def _value(given: Any) -> Any:
    """Return an array, a list of values, or None."""
    if isinstance(given, onnx.TensorProto):
        return onnx.numpy_helper.to_array(given)
    if isinstance(given, list | tuple):
        return [_value(item) for item in given]
    return given if given is None or isinstance(given, dict) else np.asarray(given)


def _file_case(test: Any, kind: str) -> SuiteCase:
    folder = Path(test.model_dir)
    model = onnx.load(folder / "model.onnx")
    data = tuple(_data_set(part, model) for part in sorted(folder.glob("test_data_set*")))
    return SuiteCase(test.name, kind, model, data, test.rtol, test.atol)


def _data_set(folder: Path, model: onnx.ModelProto) -> tuple[list[Any], list[Any]]:
    return (
        [_read(folder / f"input_{i}.pb", e.type) for i, e in enumerate(_fed(folder, model))],
        [_read(folder / f"output_{i}.pb", e.type) for i, e in enumerate(model.graph.output)],
    )


def _fed(folder: Path, model: onnx.ModelProto) -> Sequence[onnx.ValueInfoProto]:
    return model.graph.input[: len(list(folder.glob("input_*.pb")))]


def _read(path: Path, kind: onnx.TypeProto) -> Any:
    match kind.WhichOneof("value"):
        case "sequence_type":
            sequence = onnx.SequenceProto.FromString(path.read_bytes())
            return _value(onnx.numpy_helper.to_list(sequence))
        case "optional_type":
            optional = onnx.OptionalProto.FromString(path.read_bytes())
            return _value(onnx.numpy_helper.to_optional(optional))
        case _:
            return onnx.numpy_helper.to_array(onnx.load_tensor(path))


def _light_case(test: Any) -> SuiteCase:
    path = Path(DATA_DIR) / "light" / Path(test.url).name
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [_ramp(entry) for entry in model.graph.input if entry.name not in weights]
    wanted = [
        onnx.numpy_helper.to_array(onnx.load_tensor(path.with_name(f"{path.stem}_output_{i}.pb")))
        for i in range(len(model.graph.output))
    ]
    return SuiteCase(test.name, "light", model, ((inputs, wanted),), test.rtol, test.atol)


def _ramp(entry: onnx.ValueInfoProto) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Numbers from 0 to 1, as the suite feeds these models."""
    shape = [dim.dim_value or 1 for dim in entry.type.tensor_type.shape.dim]
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) / count).astype(np.float32)
