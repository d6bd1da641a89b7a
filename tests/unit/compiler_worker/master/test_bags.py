"""Bags of embeddings while exporting: the same numbers as torch's own op."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from compiler_worker.master.export import plain_bags

IDS = torch.tensor([[1, 2, 0], [0, 0, 0], [4, 4, 3]])
WEIGHT = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("padding_idx", [None, 0, -5])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_one_length(mode: str, padding_idx: int | None) -> None:
    wanted = functional.embedding_bag(IDS, WEIGHT, mode=mode, padding_idx=padding_idx)
    with plain_bags():
        found = functional.embedding_bag(IDS, WEIGHT, mode=mode, padding_idx=padding_idx)
    torch.testing.assert_close(found, wanted)


def test_scales_of_samples() -> None:
    scales = torch.rand(3, 3)
    given = {"mode": "sum", "per_sample_weights": scales, "padding_idx": 4}
    wanted = functional.embedding_bag(IDS, WEIGHT, **given)
    with plain_bags():
        torch.testing.assert_close(functional.embedding_bag(IDS, WEIGHT, **given), wanted)


def test_other_bags_are_left_to_torch_and_torch_is_left_as_it_was() -> None:
    original = functional.embedding_bag
    flat, offsets = IDS.reshape(-1), torch.tensor([0, 2, 7])
    wanted = original(flat, WEIGHT, offsets)
    with plain_bags():
        torch.testing.assert_close(functional.embedding_bag(flat, WEIGHT, offsets), wanted)
    assert functional.embedding_bag is original
    with pytest.raises(ValueError, match="offsets"), plain_bags():
        functional.embedding_bag(flat, WEIGHT, None)
    assert functional.embedding_bag is original
