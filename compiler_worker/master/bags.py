"""Bags of embeddings as plain ops while a module is exported.

PyTorch's exporter writes `embedding_bag` as a loop that grows a sequence row by row, which
only an interpreter of ONNX can run. Bags of one length, two axes of ids, are a gather and a
reduction; whether that gives the same is checked on the file, as for every export.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional


@contextmanager
def plain_bags() -> Iterator[None]:
    """Have `torch.nn.functional.embedding_bag` gather and reduce where bags have one length."""
    original = functional.embedding_bag

    signature = inspect.signature(original)

    def embedding_bag(*args: Any, **options: Any) -> Any:
        call = signature.bind(*args, **options)
        call.apply_defaults()
        given = call.arguments
        # max_norm changes the table itself, which no graph of ONNX does.
        if given["input"].dim() == 2 and given["offsets"] is None and given["max_norm"] is None:
            names = ("input", "weight", "mode", "per_sample_weights", "padding_idx")
            return _of_one_length(*map(given.get, names))
        return original(*args, **options)

    functional.embedding_bag = embedding_bag
    try:
        yield
    finally:
        functional.embedding_bag = original


def _of_one_length(
    ids_BL: Any, weight: Any, mode: Any, scales_BL: torch.Tensor | None, padding_idx: int | None
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
    total_BD: torch.Tensor = (rows_BLD * counts_BL1).sum(1)
    return total_BD if mode == "sum" else total_BD / counts_BL1.sum(1).clamp(min=1)
