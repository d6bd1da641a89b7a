"""What a master was made from, as one digest that is found without making it.

Importing PyTorch and a model takes seconds and exporting it more; a fingerprint takes
milliseconds, so the same source is exported once. It never imports the factory's module.
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path

from compiler_worker.master.source import (
    HubModel,
    MasterSource,
    OnnxFile,
    TorchFactory,
    TransformersFolder,
    TritonModel,
)
from services.contracts.builds.code_digest import code_digest
from services.contracts.errors import InvalidModelError
from services.contracts.model.document import canonical_json
from services.contracts.model.manifest import BlobRef

# What a source becomes, and what is recorded of it: a mend of these is one of its masters too.
_MAKERS = ("compiler_worker.master.export", "compiler_worker.master.stored")
_EXPORTERS = ("torch", "onnx", "onnxscript", "onnx-ir")


def fingerprint(source: MasterSource) -> str:
    """Digest of a source, in hex: sha256.

    Raises:
        InvalidModelError: a file is missing or broken, the module is not found, or a
            distribution that it declares is not installed.
    """
    match source:
        case OnnxFile(path=path):
            facts = _file_facts(path)
        case TritonModel():
            facts = _triton_facts(source)
        case TorchFactory():
            facts = _factory_facts(source)
        case TransformersFolder(folder=folder):
            facts = _folder_facts(folder, source)
        case HubModel():
            facts = {"hub": str(source)}
    return hashlib.sha256(canonical_json({"code": code_digest(*_MAKERS), **facts})).hexdigest()


def _file_facts(path: Path) -> dict[str, object]:
    from compiler_worker.master.reading import read_onnx

    files = (path, *read_onnx(path).data_files)
    return {"files": [BlobRef.of(file).sha256 for file in files]}


def _triton_facts(source: TritonModel) -> dict[str, object]:
    from compiler_worker.master.triton.config_text import CONFIG_FILE
    from compiler_worker.master.triton.repository import onnx_file

    config = source.folder / CONFIG_FILE
    of_config = {"config": BlobRef.of(config).sha256} if config.is_file() else {}
    return _file_facts(onnx_file(source)) | of_config


def _folder_facts(folder: Path, source: MasterSource) -> dict[str, object]:
    from compiler_worker.master.hub.folder import WEIGHTS

    files = [folder / "config.json", *sorted(folder.glob(WEIGHTS))]
    return {
        "files": [BlobRef.of(file).sha256 for file in files],
        "versions": {name: _version(name, source) for name in (*_EXPORTERS, "transformers")},
    }


def _factory_facts(source: TorchFactory) -> dict[str, object]:
    text = _module_text(source.module)
    # Parsed, as importing it would import torch and the model.
    tree = ast.parse(text)
    texts = [text, *(_module_text(name) for name in _literal(tree, "SOURCES", source))]
    distributions = {*_EXPORTERS, *_literal(tree, "DISTRIBUTIONS", source)}
    return {
        "factory": str(source),
        "sources": [hashlib.sha256(text).hexdigest() for text in texts],
        "versions": {name: _version(name, source) for name in distributions},
    }


def _module_text(module: str) -> bytes:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise InvalidModelError(
            f"module {module}: no source found on the Python path; install its package or run "
            "from its folder"
        )
    return Path(spec.origin).read_bytes()


def _literal(tree: ast.Module, name: str, source: TorchFactory) -> tuple[str, ...]:
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                return _strings(value, name, source)
    return ()


def _strings(value: ast.expr, name: str, source: TorchFactory) -> tuple[str, ...]:
    try:
        found = ast.literal_eval(value)
    except ValueError:
        found = None
    if not isinstance(found, tuple | list) or not all(isinstance(item, str) for item in found):
        raise InvalidModelError(
            f"{source.module}: {name} is computed, a literal tuple of strings wanted: it is "
            "read without importing the module"
        )
    return tuple(found)


def _version(distribution: str, source: MasterSource) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError as error:
        raise InvalidModelError(
            f"{source} needs the distribution {distribution}, which is not installed; "
            f"run: pip install {distribution}"
        ) from error
