"""The opset is chosen by what the checks say about the exported files."""

from pathlib import Path

import pytest
import torch

from compiler_worker.master.export import export_master
from compiler_worker.master.pytorch_source import DimLimits, PyTorchModel
from services.contracts.errors import InvalidModelError


def llama() -> PyTorchModel:
    """A tiny decoder with rotary positions, which ONNX Runtime refuses at opset 23."""
    from transformers import LlamaConfig, LlamaForCausalLM

    class Prefill(torch.nn.Module):
        """ids int64 [B, T] -> logits float32 [B, T, 64]."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            config = LlamaConfig(
                vocab_size=64,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=1,
                num_attention_heads=4,
                num_key_value_heads=2,
            )
            self.decoder = LlamaForCausalLM(config).eval()

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.decoder(input_ids=ids, use_cache=False).logits
            return logits

    return PyTorchModel(
        module=Prefill(),
        example_inputs={"ids": torch.arange(2 * 5).reshape(2, 5)},
        dynamic_dims={"ids": {0: "batch", 1: "sequence"}},
        dim_limits={
            "batch": DimLimits(min=1, max=8),
            "sequence": DimLimits(min=1, max=64),
        },
        output_names=("logits",),
    )


@pytest.mark.slow
def test_a_refused_opset_gives_way_to_the_next(tmp_path: Path) -> None:
    messages: list[str] = []
    stored = export_master(llama(), tmp_path, messages.append)
    assert stored.opset in (24, 20)
    assert messages[0] == "exporting at opset 23"
    assert messages[1].startswith("opset 23 refused: ONNX Runtime")
    assert messages[-1] == f"exporting at opset {stored.opset}"


class Reshuffle(torch.nn.Module):
    """Reads the size in Python, so that every export freezes the traced one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(int(x.shape[0]))


def test_every_refusal_is_told(tmp_path: Path) -> None:
    model = PyTorchModel(
        module=Reshuffle(),
        example_inputs={"x": torch.ones(3, 4)},
        dynamic_dims={"x": {0: "rows"}},
        dim_limits={"rows": DimLimits(min=1, max=8)},
        output_names=("y",),
    )
    with pytest.raises(InvalidModelError) as caught:
        export_master(model, tmp_path, lambda _: None, opsets=(23, 20))
    message = str(caught.value)
    assert "gives no right ONNX graph at any opset of 23, 20" in message
    assert "opset 23: " in message
    assert "opset 20: " in message


@pytest.mark.parametrize("name", ["linear", "gelu", "weight", "x_1"])
def test_an_output_may_be_called_as_what_is_within(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    model = PyTorchModel(
        module=module.eval(),
        example_inputs={"x": torch.randn(3, 4)},
        dynamic_dims={"x": {0: "rows"}},
        dim_limits={"rows": DimLimits(min=1, max=8)},
        output_names=(name,),
    )
    messages: list[str] = []
    stored = export_master(model, tmp_path, messages.append)
    assert [spec.name for spec in stored.outputs] == [name]
    assert messages == ["exporting at opset 23"]
