"""The traffic of chains: what is predicted is what dispatched ops are seen to move."""

import pytest
import torch
from torch.fx import symbolic_trace

from compiler_worker.profiling.eager_run import dispatched_ops
from compiler_worker.profiling.traffic import Chain, Dispatched, chain_of

SIZE = 640
ITEM_BYTES = 4


class _Elementwise(torch.nn.Module):
    """n ops in a row; the first c of them take a second operand of the same size."""

    def __init__(self, num_ops: int, num_sides: int) -> None:
        super().__init__()
        self._num_ops, self._num_sides = num_ops, num_sides

    def forward(self, x: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
        for index in range(self._num_ops):
            x = x + side if index < self._num_sides else torch.tanh(x)
        return x


def dispatched(module: torch.nn.Module, *inputs: torch.Tensor) -> list[Dispatched]:
    return dispatched_ops(symbolic_trace(module), inputs)


@pytest.mark.parametrize(("num_ops", "num_sides"), [(1, 0), (2, 0), (3, 1), (5, 5), (9, 2)])
def test_a_chain_moves_2n_plus_c_tensors(num_ops: int, num_sides: int) -> None:
    ops = dispatched(_Elementwise(num_ops, num_sides), torch.ones(SIZE), torch.ones(SIZE))
    assert len(ops) == num_ops
    moved = sum(op.num_bytes for op in ops)
    assert moved == (2 * num_ops + num_sides) * SIZE * ITEM_BYTES
    assert chain_of(ops) == Chain(num_ops=num_ops, num_sides=num_sides)


@pytest.mark.parametrize(
    ("num_ops", "num_sides", "gain"), [(1, 0, 1.0), (2, 0, 2.0), (3, 1, 7 / 3), (4, 4, 2.0)]
)
def test_the_gain_is_that_of_the_formula(num_ops: int, num_sides: int, gain: float) -> None:
    chain = Chain(num_ops=num_ops, num_sides=num_sides)
    assert chain.gain == pytest.approx(gain)


def test_a_small_operand_is_no_side_input() -> None:
    ops = dispatched(_Elementwise(2, 1), torch.ones(8, SIZE), torch.ones(SIZE))
    assert chain_of(ops) == Chain(num_ops=2, num_sides=0)


def test_ops_on_tensors_of_other_sizes_are_no_chain() -> None:
    class Reduced(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x).sum(0)

    assert chain_of(dispatched(Reduced(), torch.ones(8, 8))) is None
    assert chain_of([]) is None


def test_views_move_nothing() -> None:
    class Viewed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.t().reshape(2, -1).unsqueeze(0)

    ops = dispatched(Viewed(), torch.ones(4, 1))
    assert ops
    assert all(op.is_free and op.num_bytes == 0 for op in ops)


def test_a_copy_and_an_op_in_place_move_what_they_touch() -> None:
    class Copied(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.t().contiguous().add_(1.0)

    transposed, copied, added = dispatched(Copied(), torch.ones(4, 6))
    assert transposed.is_free
    assert (copied.is_free, added.is_free) == (False, False)
    assert copied.num_bytes == added.num_bytes == 2 * 24 * ITEM_BYTES


def test_an_expanded_operand_is_read_once() -> None:
    class Spread(torch.nn.Module):
        def forward(self, x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
            return x + row.expand(8, -1)

    _, added = dispatched(Spread(), torch.ones(8, 16), torch.ones(16))
    assert added.num_bytes == (128 + 16 + 128) * ITEM_BYTES


def test_a_lookup_reads_rows_and_not_the_table() -> None:
    class Looked(torch.nn.Module):
        def forward(self, table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.embedding(ids, table)

    (op,) = dispatched(Looked(), torch.ones(1000, 16), torch.tensor([1, 2, 3]))
    assert op.num_bytes == 2 * 3 * 16 * ITEM_BYTES + 3 * 8


def test_products_and_attention_have_flops() -> None:
    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.relu(x @ y)

    product, relu = dispatched(Product(), torch.ones(3, 5), torch.ones(5, 7))
    assert (product.num_flops, relu.num_flops) == (2 * 3 * 5 * 7, 0)

    class Joined(torch.nn.Module):
        def forward(self, bias: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch._addmm_activation(bias, x, y)  # noqa: SLF001 - an op of torch

    (joined,) = dispatched(Joined(), torch.ones(7), torch.ones(3, 5), torch.ones(5, 7))
    assert joined.num_flops == 2 * 3 * 5 * 7

    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    ops = dispatched(Attention(), torch.ones(2, 4, 6, 8))
    # Two products of [6, 8] by [8, 6] and [6, 6] by [6, 8], in each of 2 x 4 heads.
    assert sum(op.num_flops for op in ops) == 2 * 4 * 2 * (2 * 6 * 6 * 8)
