"""Counts of n-grams (TfIdfVectorizer).

Legend: B = rows, T = items of a row, P = n-grams of one length in the pool.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


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
