"""Where a master comes from: an ONNX file, a PyTorch factory, a model of Triton's or of the hub."""

import re
from dataclasses import dataclass
from pathlib import Path

from services.contracts.errors import InvalidModelError
from services.contracts.external.external_model import EXPECTED_URL

_TRITON = "triton://"
_HUB = "hf://"
_HUB_MODEL = re.compile(
    r"([\w.-]+/[\w.-]+)(?:@(refs/[^/@]+/[^/@]+|[^/@]+))?(?:/([^@]+\.onnx))?", re.ASCII
)
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


@dataclass(frozen=True, kw_only=True)
class TransformersFolder:
    """A folder of Hugging Face's layout that has weights and no ONNX file."""

    folder: Path

    def __str__(self) -> str:
        return str(self.folder)


@dataclass(frozen=True, kw_only=True)
class HubModel:
    """A repository of Hugging Face's hub, to be brought here (`hub/snapshot.py`).

    Attributes:
        repository: `ORG/MODEL`.
        revision: a branch, tag or commit; "" leaves it to the repository.
        file: one of its ONNX files; "" leaves it to `hub/folder.py`.
    """

    repository: str
    revision: str = ""
    file: str = ""

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        return f"{_HUB}{self.repository}{at}{f'/{self.file}' if self.file else ''}"


MasterSource = OnnxFile | TorchFactory | TritonModel | TransformersFolder | HubModel


def source_from_text(text: str) -> MasterSource:
    """Read a source as users write it: `model.onnx`, `module:factory`, `triton://DIR`, `hf://...`.

    Raises:
        InvalidModelError: it is none of them.
    """
    if text.startswith(_HUB):
        return _hub_model(text)
    if text.startswith(_TRITON):
        return _triton_model(Path(text.removeprefix(_TRITON)))
    if match := _FACTORY.fullmatch(text):
        return TorchFactory(module=match[1], name=match[2])
    if "://" in text:
        raise InvalidModelError(
            f"model source '{text}': expected {_HUB}ORG/MODEL, {_TRITON}DIR, oci://REGISTRY/NAME, "
            f"or a server that has the model: {EXPECTED_URL}; of a file its path"
        )
    if text.endswith(".onnx") or (text and Path(text).exists()):
        return OnnxFile(path=Path(text))
    raise InvalidModelError(
        f"model source '{text}': expected a file that ends with .onnx, or a PyTorch factory "
        f"written package.module:function, or a model of a Triton repository written {_TRITON}DIR, "
        f"or one of the hub written {_HUB}ORG/MODEL; no file or folder is called so"
    )


def _hub_model(text: str) -> HubModel:
    match = _HUB_MODEL.fullmatch(text.removeprefix(_HUB))
    if match is None:
        raise InvalidModelError(
            f"model source '{text}': expected {_HUB}ORG/MODEL, then @REVISION and /FILE.onnx where "
            "wanted"
        )
    return HubModel(repository=match[1], revision=match[2] or "", file=match[3] or "")


def _triton_model(folder: Path) -> TritonModel:
    if folder.name.isascii() and folder.name.isdigit() and not (folder / "config.pbtxt").exists():
        return TritonModel(folder=folder.parent, version=int(folder.name))
    return TritonModel(folder=folder)
