"""Reads a master that another store published, and holds it to its record."""

from pathlib import Path

from compiler_worker.master.digest import canonical_digest
from compiler_worker.master.interface import tensor_specs
from compiler_worker.master.normalise import normalise
from compiler_worker.master.opened import MODEL_FILE, StoredMaster
from compiler_worker.master.stored import load_ir
from services.contracts.errors import CorruptBlobError
from services.contracts.model.manifest import MasterRecord


def read_recorded(folder: Path, record: MasterRecord) -> StoredMaster:
    """The master of a record, once its digest and interface are computed anew.

    Raises:
        CorruptBlobError: the files are another master's.
        InvalidModelError: they are no master's.
    """
    model, _ = load_ir(folder / MODEL_FILE)
    normalise(model)
    interface = tensor_specs(model.graph.inputs), tensor_specs(model.graph.outputs)
    found = canonical_digest(model), *interface, model.opset_imports[""]
    if found != (record.digest, record.inputs, record.outputs, record.opset):
        raise CorruptBlobError(
            f"{folder / MODEL_FILE} is master {found[0]} or has another interface, its record says "
            f"{record.digest}: it was altered; have it published again"
        )
    return StoredMaster(
        digest=record.digest,
        files={name: folder / name for name in record.files},
        inputs=record.inputs,
        outputs=record.outputs,
        opset=record.opset,
        num_parameters=record.num_parameters,
        input_values=record.input_values,
    )
