"""What torch's own recurrent layers are called with."""

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from compiler_worker.onnx_to_fx.kernels.recurrence import LAYERS, recurrent

# B = batch, T = time, F = features, H = hidden size.
B, T, F, H = 3, 5, 2, 4


class StatesOfCuDnn(TorchFunctionMode):
    """Refuses layers whose states cuDNN refuses; CPUs take all."""

    def __init__(self) -> None:
        super().__init__()
        self.num_layers = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (torch.gru, torch.lstm, torch.rnn_tanh):
            self.num_layers += 1
            states = args[1] if isinstance(args[1], list | tuple) else [args[1]]
            assert all(state.is_contiguous() for state in states), "rnn: hx is not contiguous"
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("kind", list(LAYERS))
def test_states_with_the_batch_first_are_whole(kind: str) -> None:
    layer = LAYERS[kind]
    gates = len(layer.gates)
    activations = next(iter(layer.function))
    torch.manual_seed(0)
    weights = (torch.randn(2, gates * H, F), torch.randn(2, gates * H, H), None, None)
    states_BNH = [torch.randn(B, 2, H) for _ in range(layer.num_states)]
    form = (activations, None, True, False)
    with StatesOfCuDnn() as seen:
        x_BTF = torch.randn(B, T, F)
        y_BTNH, *_ = recurrent(
            kind, x_BTF, weights, states_BNH, None, [form] * 2, (False, True), True, T
        )
    assert seen.num_layers == 1
    assert y_BTNH.shape == (B, T, 2, H)
