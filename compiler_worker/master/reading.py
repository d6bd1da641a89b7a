"""Reads an ONNX file from an untrusted source."""

from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from compiler_worker.master.external_data import check_external_data
from compiler_worker.master.foreign_files import refusal_of
from compiler_worker.master.source import OnnxFile
from services.contracts.errors import InvalidModelError

# Protobuf's own bound on one message; beyond it a file cannot be parsed at all.
MAX_PROTO_BYTES = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class ReadModel:
    """A parsed file, external data checked but not loaded.

    Attributes:
        data_files: the external data files it names.
    """

    path: Path
    proto: onnx.ModelProto
    data_files: tuple[Path, ...]


def read_onnx(path: Path) -> ReadModel:
    """Parse an ONNX file and check every file it names.

    Raises:
        InvalidModelError: no such file, one of another format, over 2 GiB, broken or truncated, no
            graph, or a fault of its external data.
    """
    _check_size(path)
    try:
        proto = onnx.ModelProto.FromString(path.read_bytes())
    except DecodeError as error:
        broken = "not an ONNX file, or broken or truncated"
        raise InvalidModelError(
            refusal_of(path, is_onnx=False)
            or f"{path}: {broken} ({error}); export or copy it again"
        ) from error
    if not proto.HasField("graph") or not proto.opset_import:
        raise InvalidModelError(
            refusal_of(path, is_onnx=False)
            or f"{path}: no graph or no opset found, an ONNX model with both wanted; the file is "
            "truncated or not ONNX: export or copy it again"
        )
    return ReadModel(path=path, proto=proto, data_files=check_external_data(proto, path))


def _check_size(path: Path) -> None:
    # The size is read before any byte: a file that cannot be a message is never loaded.
    OnnxFile(path=path).require()
    if refusal := refusal_of(path):
        raise InvalidModelError(refusal)
    found = path.stat().st_size
    if found > MAX_PROTO_BYTES:
        raise InvalidModelError(
            f"{path}: {found} bytes found, at most {MAX_PROTO_BYTES} (2 GiB) wanted; save the "
            "weights as external data: onnx.save(model, path, save_as_external_data=True)"
        )
