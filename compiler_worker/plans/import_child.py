"""Whether the importer takes a master: the inside of a child process."""

import onnx

from compiler_worker.children.child import Events
from compiler_worker.children.requests import ImportRequest, ImportVerdict
from compiler_worker.onnx_to_fx import graph_module_from_onnx
from services.contracts.errors import UnsupportedGraphError


def import_one(request: ImportRequest, _events: Events) -> ImportVerdict:
    """Import and drop the graph; only the verdict is kept."""
    try:
        graph_module_from_onnx(onnx.load(request.master_path))
    except UnsupportedGraphError as error:
        return ImportVerdict(refusal=str(error))
    return ImportVerdict()
