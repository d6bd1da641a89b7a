"""Where a master comes from: an ONNX file or a PyTorch factory."""

import re
from dataclasses import dataclass
from pathlib import Path

from services.contracts.errors import InvalidModelError

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


MasterSource = OnnxFile | TorchFactory


def source_from_text(text: str) -> MasterSource:
    """Read a source as users write it: `model.onnx` or `package.module:factory`.

    Raises:
        InvalidModelError: it is neither.
    """
    if match := _FACTORY.fullmatch(text):
        return TorchFactory(module=match[1], name=match[2])
    if text.endswith(".onnx") or (text and Path(text).exists()):
        return OnnxFile(path=Path(text))
    raise InvalidModelError(
        f"model source '{text}': expected a file that ends with .onnx, or a PyTorch factory "
        "written package.module:function; no file or folder is called so"
    )
