"""Sizes that only the call knows: decisions about them, and what keeps them round after round."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from tests.unit.compiler_worker.onnx_to_fx.graphs import model

# Decisions about the sizes n and m of x and z; each gives a shape, or numbers made of one.
DECISIONS = {
    "equal": "c = Equal (n, m) s = Where (c, n, m)",
    "not equal": "e = Equal (n, m) c = Not (e) s = Where (c, n, one)",
    "greater": "c = Greater (n, m) s = Where (c, n, m)",
    "greater or equal": "c = GreaterOrEqual (n, m) s = Where (c, one, m)",
    "less": "c = Less (n, four) s = Where (c, n, four)",
    "less or equal": "c = LessOrEqual (n, four) s = Where (c, m, four)",
    "and": "a = Less (n, four) b = Equal (m, four) c = And (a, b) s = Where (c, n, one)",
    "or": "a = Less (n, four) b = Equal (m, four) c = Or (a, b) s = Where (c, n, one)",
    "xor": "a = Less (n, four) b = Equal (m, four) c = Xor (a, b) s = Where (c, n, one)",
    "as a number": "c = Less (n, m) i = Cast <to = 7> (c) s = Add (i, m)",
    "of a number": "d = Sub (n, m) c = Cast <to = 9> (d) s = Where (c, n, four)",
    "of a negative": "d = Sub (n, m) c = Less (d, one) s = Where (c, m, n)",
}
SIZES = ((2, 5), (5, 2), (4, 4), (3, 4), (4, 3), (1, 1))


def deciding(nodes: str) -> onnx.ModelProto:
    """A model whose output has the size that the nodes decide."""
    return model(
        f"""g (float[N] x, float[M] z) => (float y, bool told, int64 number) {{ n = Shape (x)
        m = Shape (z) {nodes} y = Expand (half, s) told = Greater (n, m) number = Neg (s) }}""",
        one=np.array([1]),
        four=np.array([4]),
        half=np.array([0.5], np.float32),
    )


def fed(sizes: tuple[int, int]) -> list[torch.Tensor]:
    """Inputs of these sizes."""
    return [torch.zeros(size) for size in sizes]


@pytest.mark.parametrize("nodes", DECISIONS.values(), ids=DECISIONS.keys())
def test_decisions_about_sizes_are_those_of_onnxruntime(nodes: str) -> None:
    built = deciding(nodes)
    session = onnxruntime.InferenceSession(built.SerializeToString())
    module = graph_module_from_onnx(built)
    for sizes in SIZES:
        given = fed(sizes)
        want = session.run(None, dict(zip("xz", (x.numpy() for x in given), strict=True)))
        for got, expected in zip(module(*given), want, strict=True):
            np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("name", ["equal", "less", "of a number", "xor"])
def test_an_export_decides_in_the_call(name: str) -> None:
    decided = deciding(DECISIONS[name])
    # torch asks of every size whether it is 1, and so of y's.
    del decided.graph.output[0]
    module = graph_module_from_onnx(decided)
    dims = ({0: torch.export.Dim("N", max=64)}, {0: torch.export.Dim("M", max=64)})
    example = tuple(fed((6, 7)))
    exported = torch.export.export(module, example, dynamic_shapes=dims, strict=False).module()
    for sizes in SIZES[:-1]:
        for got, want in zip(exported(*fed(sizes)), module(*fed(sizes)), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0)


SUMMING = """g (float[N, 3] rows, float[M] start) => (float last, float stack) {
    last, stack = Scan <num_scan_inputs = 1, body = b (float[M] s, float[3] row) =>
    (float[M] t, float u) { t = Add (s, row) u = Mul (t, row) }> (start, rows) }"""


def test_what_goes_round_may_be_a_broadcast_that_keeps_its_sizes() -> None:
    module = graph_module_from_onnx(model(SUMMING))
    for length in (1, 4):
        rows, start = torch.rand(length, 3), torch.rand(3)
        sums = start + rows.cumsum(0)
        torch.testing.assert_close(module(rows, start), (sums[-1], sums * rows))


def test_what_goes_round_may_not_grow_in_a_call() -> None:
    module = graph_module_from_onnx(model(SUMMING))
    with pytest.raises(ValueError, match=r"found \[3\], wanted \[1\]"):
        module(torch.rand(4, 3), torch.rand(1))


def test_indices_of_another_depth_are_not_answered() -> None:
    built = model(
        """g (float[A, B] x, int64[N, D] places, float[N] new) => (float y) {
        y = ScatterND (x, places, new) }"""
    )
    module = graph_module_from_onnx(built)
    x, places = torch.zeros(2, 3), torch.tensor([[0, 1], [1, 2]])
    (y,) = module(x, places, torch.tensor([5.0, 6.0]))
    assert y.tolist() == [[0, 5, 0], [0, 0, 6]]
    with pytest.raises(RuntimeError):
        module(x, torch.tensor([[0, 1, 1], [1, 2, 1]]), torch.ones(2))


@pytest.mark.parametrize(("query_heads", "key_heads"), [(4, 2), (2, 2), (6, 1)])
@pytest.mark.parametrize("mask_size", [5, 3, 1])
def test_attention_takes_heads_head_size_and_mask_as_they_come(
    query_heads: int, key_heads: int, mask_size: int
) -> None:
    built = model(
        """g (float[B, H, Q, D] q, float[B, G, K, D] k, float[B, G, K, E] v, float[Q, M] mask)
        => (float y) { y = Attention <softcap = 2.0> (q, k, v, mask) }""",
        opset=24,
    )
    given: list[Any] = [(2, query_heads, 3, 8), (2, key_heads, 5, 8), (2, key_heads, 5, 4)]
    feeds = [torch.rand(size) for size in (*given, (3, mask_size))]
    (got,) = graph_module_from_onnx(built)(*feeds)
    q, k, v, mask = feeds
    group = query_heads // key_heads
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = torch.tanh(q @ k.mT / 8**0.5 / 2) * 2
    scores = scores[..., :mask_size] + mask
    torch.testing.assert_close(got, scores.softmax(-1) @ v[..., :mask_size, :])
