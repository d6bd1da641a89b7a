"""Bags of embeddings as plain ops while a module is exported.

PyTorch's exporter writes `embedding_bag` as a loop that grows a sequence row by row, which
only an interpreter of ONNX can run. Bags of one length, two axes of ids, are a gather and a
reduction; whether that gives the same is checked on the file, as for every export.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional


@contextmanager
def plain_bags() -> Iterator[None]:
    """Have `torch.nn.functional.embedding_bag` gather and reduce where bags have one length."""
    original = functional.embedding_bag

    def embedding_bag(
        input: torch.Tensor,  # noqa: A002  (torch's own name)
        weight: torch.Tensor,
        offsets: torch.Tensor | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        per_sample_weights: torch.Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Any:
        # max_norm changes the table itself, which no graph of ONNX does.
        if input.dim() == 2 and offsets is None and max_norm is None:
            return _of_one_length(input, weight, mode, per_sample_weights, padding_idx)
        return original(
            input,
            weight,
            offsets,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            mode,
            sparse,
            per_sample_weights,
            include_last_offset,
            padding_idx,
        )

    functional.embedding_bag = embedding_bag
    try:
        yield
    finally:
        functional.embedding_bag = original


def _of_one_length(
    ids_BL: torch.Tensor,
    weight: torch.Tensor,
    mode: str,
    scales_BL: torch.Tensor | None,
    padding_idx: int | None,
) -> torch.Tensor:
    """Reduce the rows of each bag; those of the padding id do not count."""
    rows_BLD = functional.embedding(ids_BL, weight)
    if scales_BL is not None:
        rows_BLD = rows_BLD * scales_BL.unsqueeze(-1)
    if padding_idx is None:
        if mode == "max":
            return rows_BLD.amax(1)
        return rows_BLD.sum(1) if mode == "sum" else rows_BLD.mean(1)
    # A negative padding_idx counts from the table's end, as torch has it.
    counts_BL1 = (ids_BL != padding_idx % weight.shape[0]).unsqueeze(-1)
    if mode == "max":
        # torch gives zeros for a bag of padding alone.
        largest_BD = rows_BLD.masked_fill(~counts_BL1, -torch.inf).amax(1)
        return torch.where(counts_BL1.any(1), largest_BD, torch.zeros_like(largest_BD))
    total_BD = (rows_BLD * counts_BL1).sum(1)
    return total_BD if mode == "sum" else total_BD / counts_BL1.sum(1).clamp(min=1)
