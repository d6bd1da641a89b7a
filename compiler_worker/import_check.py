"""Asks the importer whether it takes a master: the inside of a throw-away process."""

from pathlib import Path

from compiler_worker.child import Events
from services.contracts.document import Document
from services.contracts.errors import UnsupportedGraphError


class ImportRequest(Document):
    """Import one master.

    Attributes:
        master_path: the master's `model.onnx`.
    """

    master_path: Path


class ImportVerdict(Document):
    """What the importer says.

    Attributes:
        refusal: op, opset, node and reason; "" when it takes the graph.
    """

    refusal: str = ""


def import_one(request_bytes: bytes, _events: Events) -> ImportVerdict:
    """Import and forget; the verdict is all that is kept."""
    import onnx

    from compiler_worker.onnx_to_fx import graph_module_from_onnx

    request = ImportRequest.from_json(request_bytes)
    try:
        graph_module_from_onnx(onnx.load(request.master_path))
    except UnsupportedGraphError as error:
        return ImportVerdict(refusal=str(error))
    return ImportVerdict()
