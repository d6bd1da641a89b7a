"""Where a master comes from: an ONNX file, a PyTorch factory, a model of a Triton repository."""

import re
from dataclasses import dataclass
from pathlib import Path

from services.contracts.errors import InvalidModelError

_TRITON = "triton://"
_FACTORY = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")


@dataclass(frozen=True, kw_only=True)
class OnnxFile:
    """An ONNX file, its external data beside it; `read_onnx` checks what it is."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def require(self) -> None:
        """Raise InvalidModelError where it is not there."""
        if not self.path.exists():
            raise InvalidModelError(f"{self.path}: no such file; expected an ONNX model")


@dataclass(frozen=True, kw_only=True)
class TorchFactory:
    """A function `package.module:name` that returns a `PyTorchModel`."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


@dataclass(frozen=True, kw_only=True)
class TritonModel:
    """A model's folder in a Triton repository.

    Attributes:
        version: number of one of its versions; 0 leaves it to the configuration.
    """

    folder: Path
    version: int = 0

    def __str__(self) -> str:
        return f"{_TRITON}{self.folder / str(self.version) if self.version else self.folder}"


MasterSource = OnnxFile | TorchFactory | TritonModel


def source_from_text(text: str) -> MasterSource:
    """Read a source as users write it: `model.onnx`, `package.module:factory` or `triton://DIR`.

    Raises:
        InvalidModelError: it is neither.
    """
    if text.startswith(_TRITON):
        return _triton_model(Path(text.removeprefix(_TRITON)))
    if match := _FACTORY.fullmatch(text):
        return TorchFactory(module=match[1], name=match[2])
    if text.endswith(".onnx") or (text and Path(text).exists()):
        return OnnxFile(path=Path(text))
    raise InvalidModelError(
        f"model source '{text}': expected a file that ends with .onnx, or a PyTorch factory "
        "written package.module:function, or a model of a Triton repository written triton://DIR; "
        "no file or folder is called so"
    )


def _triton_model(folder: Path) -> TritonModel:
    if folder.name.isascii() and folder.name.isdigit() and not (folder / "config.pbtxt").exists():
        return TritonModel(folder=folder.parent, version=int(folder.name))
    return TritonModel(folder=folder)
