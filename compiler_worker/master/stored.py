"""The store form of a master: a small graph, and every weight in one aligned file.

`model.onnx` holds the graph and values up to 1 KiB (shapes, scalars: engines need them as
constants); `weights.bin` holds the rest, page-aligned, so that each engine maps the same
pages. Equal masters give equal bytes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir

from compiler_worker.master import walk
from compiler_worker.master.admission import DOMAINS, NEWEST_RUN_OPSET, admit, check_rules
from compiler_worker.master.digest import canonical_digest
from compiler_worker.master.dimensions.dim_names import name_dims
from compiler_worker.master.input_values.known_values import input_values
from compiler_worker.master.interface import tensor_specs
from compiler_worker.master.normalise import normalise
from compiler_worker.master.opened import MODEL_FILE, StoredMaster
from compiler_worker.master.opset6 import at_opset_7
from compiler_worker.master.reading import read_onnx
from compiler_worker.master.zipmaps import Classes, without_zipmaps
from services.contracts.model.default_buckets import dynamic_dims

WEIGHTS_FILE = "weights.bin"
_MAX_INLINE_BYTES = 1024
_ALIGNMENT_BYTES = 4096


def store_onnx(
    path: Path, target_dir: Path, check_dims: Callable[[Sequence[str]], None] | None = None
) -> StoredMaster:
    """Admit, normalise and write an ONNX file into another folder.

    Args:
        path: of the file.
        target_dir: is made where it is absent.
        check_dims: called with the dynamic dimensions of the inputs before what takes long.

    Raises:
        InvalidModelError: the file cannot become a master.
    """
    model, classes = load_ir(path)
    unconfirmed = normalise(model)
    named_dims = name_dims(model, path, unconfirmed)
    inputs = tensor_specs(model.graph.inputs)
    if check_dims is not None:
        check_dims(dynamic_dims(inputs))
    outputs = tensor_specs(model.graph.outputs)
    values = input_values(model)
    files = _write(model, target_dir)
    check_rules(files[MODEL_FILE])
    return StoredMaster(
        digest=canonical_digest(model),
        files=files,
        inputs=inputs,
        outputs=outputs,
        opset=model.opset_imports[""],
        num_parameters=_num_parameters(model),
        input_values=values,
        named_dims=named_dims,
        classes=classes,
    )


def load_ir(path: Path) -> tuple[ir.Model, Classes]:
    """Read and admit an ONNX file, its external weights on disk; and the classes of its tables."""
    read = read_onnx(path)
    read = replace(read, proto=at_opset_7(read.proto))
    opsets = walk.opsets_of(read.proto.opset_import)
    if "" not in opsets and opsets.keys() & set(DOMAINS):
        # A master has a version of ai.onnx, also one that uses none of its ops.
        read.proto.opset_import.append(onnx.helper.make_opsetid("", NEWEST_RUN_OPSET))
    classes = without_zipmaps(read.proto)
    admit(read)
    for entry in read.proto.opset_import:
        entry.domain = walk.domain_of(entry.domain)
    model = ir.from_proto(read.proto)
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model, classes


def _write(model: ir.Model, target_dir: Path) -> dict[str, Path]:
    target_dir.mkdir(parents=True, exist_ok=True)
    ir.external_data.unload_from_model(
        model,
        target_dir,
        WEIGHTS_FILE,
        size_threshold_bytes=_MAX_INLINE_BYTES,
        alignment=_ALIGNMENT_BYTES,
        align_threshold=_MAX_INLINE_BYTES,
    )
    # The default serialisation of protobuf may order maps differently between processes.
    data = ir.to_proto(model).SerializeToString(deterministic=True)
    (target_dir / MODEL_FILE).write_bytes(data)
    # A model without large weights has none to map, and an empty file cannot be mapped.
    if (target_dir / WEIGHTS_FILE).stat().st_size == 0:
        (target_dir / WEIGHTS_FILE).unlink()
    names = (MODEL_FILE, WEIGHTS_FILE)
    return {name: target_dir / name for name in names if (target_dir / name).is_file()}


def _num_parameters(model: ir.Model) -> int:
    values = (value for graph in model.graphs() for value in graph.initializers.values())
    return sum(math.prod(v.const_value.shape.numpy()) for v in values if v.const_value)
