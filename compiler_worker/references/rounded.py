"""A typed graph computed in float32, each value of which is rounded as its type has it.

Processors without instructions for halves take up to seven times as long in their kernels, and get
about the same (advice_zoo_cpu): kernels of halves add up in float32 and round what they write.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from compiler_worker.builders.graphs import fx_graph
from compiler_worker.references.models import FxModel
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord

_NARROW = (torch.float16, torch.bfloat16)


class RoundedModel:
    """The master as engines of a precision have it, before any compiler."""

    def __init__(self, master_path: Path, master: MasterRecord, precision: Precision) -> None:
        """Type and import the graph.

        Args:
            master_path: the master's `model.onnx`.
            master: names inputs and outputs.
            precision: fp16 or bf16.

        Raises:
            UnsupportedGraphError: the graph is not available in that precision.
        """
        module = fx_graph(master_path, precision)
        self._model = FxModel(module, master, device="cpu", is_double=False)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs from inputs of any shape; raises ProofError where PyTorch failed."""
        with _Rounding():  # type: ignore[no-untyped-call]
            return self._model.run(inputs)


class _Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Has each op that is given halves compute in float32, and rounds what it gives."""

    # Nothing is traced here: to hide from Dynamo would import it, for seconds.
    _should_skip_dynamo = classmethod(lambda _: False)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        narrow = next((each.dtype for each in tensors if each.dtype in _NARROW), None)
        # A view must stay one of its tensor; and what names its type is rounded so.
        if narrow is None or func.is_view or "dtype" in kwargs:
            return func(*args, **kwargs)
        wide_args, wide_kwargs = tree_map_only(torch.Tensor, _widened, (args, kwargs))
        found = func(*wide_args, **wide_kwargs)
        # As torch has it, floats of no dimensions widen nothing.
        if any(each.dtype is torch.float32 and each.dim() for each in tensors):
            return found
        return tree_map_only(torch.Tensor, lambda each: _rounded(each, narrow), found)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in _NARROW else tensor


def _rounded(tensor: torch.Tensor, narrow: torch.dtype) -> torch.Tensor:
    return tensor.to(narrow) if tensor.dtype is torch.float32 else tensor
