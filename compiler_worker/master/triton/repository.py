"""Finds the ONNX files of a model in a Triton repository: NAME/config.pbtxt, NAME/VERSION/..."""

from dataclasses import replace
from pathlib import Path

from compiler_worker.master.source import TritonModel
from compiler_worker.master.triton.config_text import CONFIG_FILE, read_config
from services.contracts.errors import InvalidModelError
from services.pb import open_inference_v2_pb2 as pb

MODEL_FILE = "model.onnx"
_ONNX = ("onnxruntime_onnx", "onnxruntime")
_PLAN = (
    "a plan is compiled, and holds no graph that engines could be proven against: add the ONNX "
    "file that it was built from, smelt models add NAME FILE.onnx"
)
_WAYS = {
    "tensorrt_plan": _PLAN,
    "tensorrt": _PLAN,
    "ensemble": "Smelt chains no models: add each of its steps, and call them one after the other",
    "python": "Smelt runs no Python of models: export what computes to ONNX",
}


def versions_of(source: TritonModel) -> list[TritonModel]:
    """Each version that Triton would serve, oldest first; one alone that is named.

    Raises:
        InvalidModelError: no model is there, or it is none of ONNX Runtime's.
    """
    found = _versions(source.folder)
    config = read_config(source.folder).config
    _check_platform(source.folder, config)
    if source.version:
        found = [source.version]
    elif config.version_policy.HasField("specific"):
        found = [n for n in found if n in config.version_policy.specific.versions]
    elif not config.version_policy.HasField("all"):
        found = found[-(config.version_policy.latest.num_versions or 1) :]
    if not found:
        raise InvalidModelError(
            f"{source.folder}: none of its versions is in version_policy; name one: "
            f"triton://{source.folder}/VERSION"
        )
    return [replace(source, version=number) for number in found]


def onnx_file(source: TritonModel) -> Path:
    """The ONNX file of a version, the newest that Triton serves where none is named.

    Raises:
        InvalidModelError: there is none; says what is there.
    """
    version = versions_of(source)[-1].version
    name = read_config(source.folder).config.default_model_filename or MODEL_FILE
    path = source.folder / str(version) / Path(name).name
    # A model whose weights lie beside it may be a folder.
    path = path / MODEL_FILE if path.is_dir() else path
    if path.is_file():
        return path
    there = sorted(each.name for each in path.parent.glob("*")) or ["nothing"]
    raise InvalidModelError(f"{path}: no such file; there is {', '.join(there[:5])}")


def _versions(folder: Path) -> list[int]:
    """Numbers of the versions of a model; raises InvalidModelError where there is no model."""
    if not folder.is_dir():
        raise InvalidModelError(f"{folder}: no such folder; expected a model of a repository")
    numbers = sorted(int(p.name) for p in folder.iterdir() if p.is_dir() and _is_version(p.name))
    if numbers:
        return numbers
    if models := sorted(path.parent.name for path in folder.glob(f"*/{CONFIG_FILE}")):
        raise InvalidModelError(
            f"{folder}: a repository of {', '.join(models[:5])}; add each model by its name: "
            f'for model in {folder}/*/; do smelt models add "$(basename "$model")" '
            '"triton://$model"; done'
        )
    raise InvalidModelError(f"{folder}: no version in it; expected folders called 1, 2, ...")


def _is_version(name: str) -> bool:
    # As Triton: a folder that begins with 0 is no version.
    return name.isascii() and name.isdigit() and not name.startswith("0")


def _check_platform(folder: Path, config: pb.ModelConfig) -> None:
    platform = config.platform or config.backend
    if not platform and config.HasField("ensemble_scheduling"):
        platform = "ensemble"
    if not platform and not config.default_model_filename.endswith((".plan", ".pt", ".py")):
        return  # as Triton: by the name of its file, which is looked for
    if platform not in _ONNX:
        way = _WAYS.get(platform, "export it to ONNX, and add that file")
        raise InvalidModelError(
            f"{folder / CONFIG_FILE}: {platform or config.default_model_filename} found, "
            f"onnxruntime_onnx wanted: {way}"
        )
    if config.HasField("sequence_batching"):
        raise InvalidModelError(
            f"{folder / CONFIG_FILE}: sequence_batching found: requests of a sequence share a "
            "state, which Smelt does not keep; export the model with its state as input and output"
        )
