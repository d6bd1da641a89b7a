"""TfIdfVectorizer over integers.

Legend: B = rows, T = items of a row, P = n-grams of one length in the pool.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
import torch

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.values import Constant, Tensor


@converter("TfIdfVectorizer", versions=(9,))
def tf_idf_vectorizer(op: Op) -> Tensor:
    """Counts of the pool's n-grams in each row of x [B, T] or [T], weighted by the mode.

    Raises UnsupportedGraphError for another rank, and for weights in another order than outputs.
    """
    x = op.tensor(0)
    mode = op.choice("mode", ("TF", "IDF", "TFIDF"))
    if x.rank not in (1, 2):
        raise op.refuse(f"input has rank {x.rank}, wanted 1 or 2")
    columns = op.maybe_ints("ngram_indexes") or []
    width = max(columns, default=-1) + 1
    # Weights follow the pool in the words of ONNX, the outputs in its reference.
    weights = op.maybe_floats("weights") if mode != "TF" else None
    if weights and columns != list(range(len(weights))):
        raise op.refuse("weights with ngram_indexes that are not 0, 1, 2, ...")
    lengths, pools, kept = _pools(op, columns)
    rows = x.node if x.rank == 2 else op.call(torch.unsqueeze, x, 0)
    node = op.call(ngram_counts, rows, pools, lengths, op.attr_int("max_skip_count"))
    zeros = op.method("new_zeros", node, [op.dims(0)[0] if x.rank == 2 else 1, width])
    place = _constant(op, "ngram_columns", np.asarray(kept, np.int64))
    node = op.call(torch.index_add, zeros, 1, place, node)
    if mode == "IDF":
        node = op.call(torch.clamp, node, max=1)
    node = op.method("to", node, op.graph.dtype(torch.float32))
    if weights:
        factors = _constant(op, "weights", np.asarray(weights, np.float32))
        node = op.call(operator.mul, node, factors)
    if x.rank == 1:
        return Tensor(op.call(torch.squeeze, node, 0), torch.float32, (width,))
    return Tensor(node, torch.float32, (x.dims[0], width))


def _pools(op: Op, columns: list[int]) -> tuple[list[int], list[Tensor], list[int]]:
    """Return lengths, n-grams per length and their output columns, for the lengths asked for."""
    pool = op.maybe_ints("pool_int64s")
    starts = op.maybe_ints("ngram_counts") or []
    if pool is None:
        raise op.refuse("a pool of strings is not translated")
    low = op.attr_int("min_gram_length")
    high = op.attr_int("max_gram_length")
    lengths = []
    pools = []
    kept = []
    first = 0
    for length, start in enumerate(starts, start=1):
        end = starts[length] if length < len(starts) else len(pool)
        grams = np.asarray(pool[start:end], np.int64)
        if end < start or grams.size % length:
            raise op.refuse(f"{grams.size} items are no whole number of {length}-grams")
        last = first + grams.size // length
        grams = grams.reshape(-1, length)
        # Runtimes differ in which of two equal ones is counted.
        if len(np.unique(grams, axis=0)) != len(grams) or last > len(columns):
            raise op.refuse("n-grams that stand twice in the pool, or have no output")
        if len(grams) and low <= length <= high:
            lengths.append(length)
            pools.append(_constant(op, f"pool_{length}", grams))
            kept += columns[first:last]
        first = last
    if not pools:
        raise op.refuse("the pool has no n-gram of the lengths asked for")
    return lengths, pools, kept


def _constant(op: Op, name: str, array: np.ndarray) -> Tensor:
    dtype = torch.float32 if array.dtype == np.float32 else torch.int64
    return op.graph.tensor(Constant(name, array, dtype))


def ngram_counts(
    x: torch.Tensor, pools: Sequence[torch.Tensor], lengths: Sequence[int], max_skip: int
) -> torch.Tensor:
    """Count in each row how often each n-gram stands, with equal skips between its items.

    Args:
        x: integers [B, T].
        pools: n-grams [P, length] per length.
        lengths: n of each pool.
        max_skip: most items skipped between two of an n-gram; each number of skips counts.

    Returns:
        int64 [B, P of every pool].
    """
    counts = []
    for pool, length in zip(pools, lengths, strict=True):
        total = x.new_zeros([x.shape[0], pool.shape[0]], dtype=torch.int64)
        # A single item has nothing to skip.
        for step in range(1, 2 + (max_skip if length > 1 else 0)):
            total = total + _occurrences(x, pool, length, step)
        counts.append(total)
    return torch.cat(counts, 1)


def _occurrences(x_BT: torch.Tensor, pool: torch.Tensor, length: int, step: int) -> torch.Tensor:
    """Return [B, P]; a window may start anywhere, and counts where it ends inside of the row."""
    size = x_BT.shape[1]
    start_T = torch.arange(size, device=x_BT.device)
    hits_BTP = (start_T + step * (length - 1) < size).unsqueeze(1)
    for item in range(length):
        place_T = (start_T + item * step).clamp(max=size - 1)
        hits_BTP = hits_BTP & (x_BT[:, place_T].unsqueeze(2) == pool[:, item])
    return hits_BTP.sum(1)
