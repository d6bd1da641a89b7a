"""The module of a folder of Hugging Face's layout, by transformers' own classes, to be exported.

Inputs, B = batch, T = sequence, H and W = sides of a picture:
    input_ids, attention_mask: int64 [B, T]; token_type_ids too, where the model tells them apart.
    pixel_values: float32 [B, 3, H, W], as its preprocessor gives them.
"""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from compiler_worker.master.hub.folder import CLASSIFIERS, max_tokens, read_json
from compiler_worker.master.pytorch_source import DimLimits, PyTorchModel
from services.contracts.errors import InvalidModelError

_IDS = "input_ids"
_PIXELS = "pixel_values"
# An exporter wants sizes above 1 that differ from each other.
_ROWS = 3
_TOKENS = 17
_MAX_ROWS = 2**16
_SIDE = 224


class _Called(torch.nn.Module):
    """A model called with its inputs by position; it gives one tensor of its answer."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...], output: str) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.output = output

    def forward(
        self,
        first: torch.Tensor,
        second: torch.Tensor | None = None,
        third: torch.Tensor | None = None,
    ) -> torch.Tensor:
        given = [each for each in (first, second, third) if each is not None]
        answer: torch.Tensor = self.model(**dict(zip(self.names, given, strict=True)))[self.output]
        return answer


def load_module(folder: Path) -> PyTorchModel:
    """Load weights from safetensors, and say which inputs and dimensions the model has.

    Raises:
        InvalidModelError: transformers is missing, does not know the model or lacks weights of it,
            or it takes neither tokens nor pictures.
    """
    config = read_json(folder / "config.json")
    names = config.get("architectures") or [""]
    ends = (end for end in CLASSIFIERS if str(names[0]).endswith(end))
    loader = f"AutoModel{next(ends, '')}"
    output = "last_hidden_state" if loader == "AutoModel" else "logits"
    if "pretrained_cfg" in config:
        raise InvalidModelError(
            f"{folder}: a model of timm found, one of transformers wanted: load it with "
            f"timm.create_model('local-dir:{folder}'), torch.onnx.export it, and add the file"
        )
    model = _loaded(folder, loader, output)
    match getattr(model, "main_input_name", ""):
        case "input_ids":
            inputs = _tokens(model)
            limits = {"sequence": DimLimits(min=1, max=_max_sequence(folder, config))}
        case "pixel_values":
            inputs = {_PIXELS: _pictures(folder, config)}
            limits = {}
        case other:
            raise InvalidModelError(
                f"{folder}: {type(model).__name__} takes {other}, {_IDS} or {_PIXELS} wanted: "
                "export it yourself, and add the file: torch.onnx.export(..., dynamo=True)"
            )
    axes = {0: "batch"} | dict(enumerate(limits, start=1))
    return PyTorchModel(
        module=_Called(model, tuple(inputs), output).eval(),
        example_inputs=inputs,
        dynamic_dims=dict.fromkeys(inputs, axes),
        dim_limits={"batch": DimLimits(min=1, max=_MAX_ROWS)} | limits,
        output_names=(output,),
    )


def _loaded(folder: Path, loader: str, output: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise InvalidModelError(
            f"{folder}: a model without an ONNX file is exported by transformers, which is missing "
            f"({error}): pip install 'smelt[hub]'"
        ) from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        model, found = getattr(transformers, loader).from_pretrained(
            folder,
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
            # A model's own code is never run, nor a pickle read: anyone may have uploaded it.
            trust_remote_code=False,
            use_safetensors=True,
        )
    except Exception as error:  # the library raises nothing narrower
        raise InvalidModelError(f"{folder}: transformers cannot load it: {error}") from error
    is_encoder = loader == "AutoModel"
    missing = sorted(key for key in found["missing_keys"] if not (is_encoder and "pooler" in key))
    if missing:
        raise InvalidModelError(
            f"{folder}: no weights of {', '.join(missing[:3])} found, all of "
            f"{type(model).__name__}'s wanted: its {output} would be random"
        )
    return model


def _tokens(model: Any) -> dict[str, torch.Tensor]:
    ids_BT = (torch.arange(_ROWS * _TOKENS) * 7 + 5).reshape(_ROWS, _TOKENS)
    # Rows get shorter: a mask of ones alone may be taken for no mask.
    mask_BT = (torch.arange(_TOKENS) < torch.tensor([[_TOKENS], [9], [4]])).long()
    inputs = {_IDS: ids_BT % model.config.vocab_size, "attention_mask": mask_BT}
    takes_types = "token_type_ids" in inspect.signature(model.forward).parameters
    if takes_types and getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.zeros_like(ids_BT)
    return inputs


def _max_sequence(folder: Path, config: Mapping[str, Any]) -> int:
    """What positions there are for, and texts are cut to."""
    positions = config.get("max_position_embeddings")
    most = max_tokens(folder, config) or 512
    return min(most, positions) if isinstance(positions, int) and positions > 0 else most


def _pictures(folder: Path, config: Mapping[str, Any]) -> torch.Tensor:
    """Of the size that the model was trained on, as its configuration or preprocessor says."""
    processor = read_json(folder / "preprocessor_config.json")
    size = config.get("image_size") or processor.get("crop_size") or processor.get("size") or _SIDE
    if isinstance(size, dict):
        size = [size.get(side) or size.get("shortest_edge", _SIDE) for side in ("height", "width")]
    sides = size if isinstance(size, list) else [size, size]
    channels = int(config.get("num_channels", 3))
    return torch.linspace(-1, 1, _ROWS * channels * sides[0] * sides[1]).reshape(
        _ROWS, channels, *sides
    )
