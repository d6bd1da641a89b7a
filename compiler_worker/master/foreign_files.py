"""Model files that are no ONNX files: recognised by their first bytes, with the way to one.

Nothing is loaded: a pickle runs code as it is read, so that only the names in it are looked at.
"""

import io
import pickletools
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class _Found(NamedTuple):
    """What a file is, and the way from it to ONNX; PATH stands for its own."""

    what: str
    way: str


_EXPORT = (
    'torch.onnx.export(model.eval(), (example,), "model.onnx", dynamo=True, '
    'dynamic_shapes=({0: "batch"},)), example being an input of two rows'
)
_HUGGING_FACE = _Found(
    "a Hugging Face model without safetensors",
    "write these with transformers, model.save_pretrained('PATH'); or pip install optimum[onnx], "
    "then optimum-cli export onnx --model PATH PATH/onnx; and add PATH again",
)
_STATE_DICT = _Found(
    "weights without the code that computes with them (a state_dict)",
    f"model = YourModel(...); model.load_state_dict(weights); {_EXPORT}; or add its "
    "folder of Hugging Face: smelt models add NAME FOLDER",
)
_MODULE = _Found("a PyTorch module", f'model = torch.load("PATH", weights_only=False); {_EXPORT}')
_SCRIPT = _Found(
    "a TorchScript archive",
    f"the archive alone cannot be exported: export the module that it was made of: {_EXPORT}",
)
_PYTHON = _Found(
    "a Python file",
    "a function in it that returns a PyTorchModel is a source: smelt models add NAME "
    "MODULE:FUNCTION, run in its folder; see docs/how-to/models/add-a-model.md",
)
_PROGRAM = _Found(
    "a program of torch.export",
    'torch.onnx.export(torch.export.load("PATH"), (), "model.onnx", dynamo=True)',
)
_PICKLE = _Found(
    "a pickle",
    "load it where it was made, and convert it: skl2onnx.to_onnx(model, X[:1]) of scikit-learn, "
    "onnxmltools.convert_lightgbm or convert_xgboost(model, initial_types=[('x', "
    "FloatTensorType([None, num_features]))]) of trees",
)
_LIGHTGBM = _Found(
    "a LightGBM model",
    "onnxmltools.convert_lightgbm(lightgbm.Booster(model_file='PATH'), initial_types=[('x', "
    "FloatTensorType([None, num_features]))])",
)
_KERAS = _Found(
    "a Keras model", 'keras.models.load_model("PATH").export("model.onnx", format="onnx")'
)
_SAVED_MODEL = _Found(
    "a SavedModel of TensorFlow",
    "pip install tf2onnx, then python -m tf2onnx.convert --saved-model PATH --output model.onnx",
)
_TFLITE = _Found(
    "a TensorFlow Lite model",
    "pip install tf2onnx, then python -m tf2onnx.convert --tflite PATH --output model.onnx",
)
_FROZEN = _Found(
    "a graph of TensorFlow (.pb)",
    "pip install tf2onnx, then python -m tf2onnx.convert --graphdef PATH --inputs x:0 --outputs "
    "y:0 --output model.onnx",
)
# The names come before the weights, which may be gigabytes.
_MAX_PICKLE_BYTES = 2**24
_OF_TORCH = (".pt", ".pth", ".pt2", ".ts", ".bin", ".ckpt")
_BY_FIRST_BYTES = {
    b"\x89HDF": _KERAS,
    b"tree\n": _LIGHTGBM,
    b"GGUF": _Found("weights of llama.cpp (GGUF)", "export the model that they were made of"),
    b"version https://git-lfs": _Found("a pointer of Git LFS without its file", "git lfs pull"),
}


def refusal_of(path: Path, *, is_onnx: bool = True) -> str:
    """What a file or folder is, what is wanted, and the way there; "" where that is not known.

    Args:
        path: of something that is there.
        is_onnx: False where it could not be read as ONNX and has only the name of one.
    """
    found = _of_folder(path) if path.is_dir() else _of_file(path)
    if path.suffix == ".py":
        found = _PYTHON
    if found is None and not is_onnx:
        found = _FROZEN if path.suffix == ".pb" else _junk(path)
    if found is None:
        return ""
    way = found.way.replace("PATH", str(path))
    return f"{path}: {found.what} found, an ONNX file wanted: {way}"


def _of_folder(folder: Path) -> _Found:
    if (folder / "saved_model.pb").is_file():
        return _SAVED_MODEL
    if (folder / "config.pbtxt").is_file():
        return _Found("a model of a Triton repository", "smelt models add NAME triton://PATH")
    names = sorted(path.name for path in folder.iterdir())
    if models := [name for name in names if name.endswith(".onnx")]:
        others = f", or another file in it: {', '.join(models[1:])}" if models[1:] else ""
        return _Found("a folder", f"smelt models add NAME PATH/{models[0]}{others}")
    if "config.json" in names:
        return _HUGGING_FACE
    some = ", ".join(names[:5]) or "nothing"
    return _Found(f"a folder with {some}", f"export the model: {_EXPORT}")


def _of_file(path: Path) -> _Found | None:
    with path.open("rb") as file:
        head = file.read(32)
    for magic, found in _BY_FIRST_BYTES.items():
        if head.startswith(magic):
            return found
    if head[4:8] == b"TFL3":
        return _TFLITE
    # Its header is JSON behind the header's length.
    if head[8:10] == b'{"' and head[5:8] == b"\0\0\0":
        return _STATE_DICT
    # Not `is_zipfile`, which looks for four bytes near the end: weights have all of them.
    if head.startswith(b"PK"):
        with suppress(zipfile.BadZipFile):
            return _of_archive(path)
    # Protocol 2 and later begin so.
    if head[:1] == b"\x80" and head[1:2] in b"\2\3\4\5":
        with path.open("rb") as file:
            return _of_pickle(file.read(_MAX_PICKLE_BYTES))
    return None


def _junk(path: Path) -> _Found | None:
    """What has the name of a file of torch and nothing of one in it."""
    if path.suffix not in _OF_TORCH:
        return None
    with path.open("rb") as file:
        head = file.read(8)
    return _Found(
        "neither a TorchScript archive nor weights (a state_dict) nor a pickled module, but "
        f"{f'bytes that begin with {head!r}' if head else 'an empty file'}",
        f"save or copy it again, as it is broken or no file of torch; then {_EXPORT}",
    )


def _of_archive(path: Path) -> _Found:
    with zipfile.ZipFile(path) as archive:
        names = {name.rpartition("/")[2]: name for name in archive.namelist()}
        if "constants.pkl" in names:
            return _SCRIPT
        if "data.pkl" in names:
            with archive.open(names["data.pkl"]) as file:
                return _of_pickle(file.read(_MAX_PICKLE_BYTES))
        if "archive_format" in names:
            return _PROGRAM
        if "config.json" in names and "metadata.json" in names:
            return _KERAS
    return _Found("a zip archive", f"unpack it, or export the model: {_EXPORT}")


def _of_pickle(data: bytes) -> _Found:
    modules = set(_modules_in(data))
    if not any(module.split(".")[0] == "torch" for module in modules):
        return _PICKLE
    are_weights = modules <= {"torch", "torch._utils", "torch.storage", "collections"}
    return _STATE_DICT if are_weights else _MODULE


def _modules_in(data: bytes) -> Iterator[str]:
    """The modules that the pickles in a file would import."""
    file = io.BytesIO(data)
    # What follows the pickles, as the numbers of older files of torch, is none.
    with suppress(ValueError, IndexError, UnicodeDecodeError):
        while file.tell() < len(data):
            yield from _modules_of_one(file)


def _modules_of_one(file: io.BytesIO) -> Iterator[str]:
    """A module and a name are the last two strings pushed; what was there before has a number."""
    strings = [""]
    memo = dict[object, str]()
    pushed = ""
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name == "MEMOIZE" or opcode.name.endswith("PUT"):
            memo[len(memo) if argument is None else argument] = pushed
        elif opcode.name == "GLOBAL":
            pushed = ""
            yield str(argument).partition(" ")[0]
        elif opcode.name == "STACK_GLOBAL":
            pushed = ""
            yield strings[-2]
        else:
            text = memo.get(argument) if opcode.name.endswith("GET") else argument
            pushed = text if isinstance(text, str) else ""
            strings += [pushed] if pushed else []
