"""Matrix products."""

import torch
from torch.nn import functional

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.values import Dims, Tensor, broadcast_dims, unknown


@converter("MatMul", versions=(1, 9, 13))
def matmul(op: Op) -> Tensor:
    """Matrix product of the last two axes; the others broadcast."""
    a = op.tensor(0)
    b = op.tensor(1)
    return Tensor(op.call(torch.matmul, a, b), a.dtype, matmul_dims(a.dims, b.dims))


def matmul_dims(a: Dims, b: Dims) -> Dims:
    """Return what is known of the dims of a matrix product."""
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    return (*broadcast_dims(a[:-2], b[:-2]), *rows, *columns)


@converter("Gemm", versions=(7, 9, 11, 13))
def gemm(op: Op) -> Tensor:
    """Alpha A' B' + beta C, for matrices; C broadcasts to the product.

    Raises UnsupportedGraphError for integers with alpha or beta.
    """
    a = op.tensor(0)
    b = op.tensor(1)
    c = op.maybe(2)
    alpha = op.attr_float("alpha")
    beta = op.attr_float("beta")
    # A product with a float would round integers.
    if not a.is_float and (alpha, beta) != (1.0, 1.0):
        raise op.refuse(f"alpha {alpha} and beta {beta} on integer matrices are not translated")
    trans_a = bool(op.attr_int("transA"))
    trans_b = bool(op.attr_int("transB"))
    dims = (a.dims[1 if trans_a else 0], b.dims[0 if trans_b else 1])
    plain = alpha == 1.0 and beta == 1.0 and not trans_a
    if plain and trans_b and a.is_float and (c is None or c.rank == 1):
        # A weight kept as [out, in] with a bias row is torch's own linear layer.
        return Tensor(op.call(functional.linear, a, b, c), a.dtype, dims)
    node = op.call(torch.matmul, _matrix(op, a, trans_a), _matrix(op, b, trans_b))
    node = node if alpha == 1.0 else op.call(torch.mul, node, alpha)
    if c is not None:
        scaled = c if beta == 1.0 else op.call(torch.mul, c, beta)
        node = op.call(torch.add, node, scaled)
    return Tensor(node, a.dtype, dims)


def _matrix(op: Op, x: Tensor, transposed: bool) -> torch.fx.Node:
    return op.call(torch.transpose, x, 0, 1) if transposed else x.node


@converter("Det", versions=(11, 22))
def determinant(op: Op) -> Tensor:
    """Determinant of the last two axes."""
    x = op.tensor(0)
    return Tensor(op.call(torch.linalg.det, x), x.dtype, x.dims[:-2])


@converter("Einsum", versions=(12, 28))
def einsum(op: Op) -> Tensor:
    """Sum of products in Einstein's notation."""
    equation = op.attr_str("equation").replace(" ", "")
    operands = op.tensors()
    dtype = operands[0].dtype
    rank = _einsum_rank(equation, operands)
    node = op.call(torch.einsum, equation, operands)
    if not operands[0].is_float and dtype != torch.int64:
        # torch sums small integers in 64 bits.
        node = op.method("to", node, dtype)
    return Tensor(node, dtype, unknown(rank))


def _einsum_rank(equation: str, operands: list[Tensor]) -> int:
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        # Without an arrow, what stands once is kept.
        kept = [letter for letter in set(letters) if letters.count(letter) == 1]
        right = ("..." if "..." in left else "") + "".join(kept)
    hidden = [
        x.rank - len(term.replace("...", ""))
        for term, x in zip(terms, operands, strict=True)
        if "..." in term
    ]
    return len(right.replace("...", "")) + (max(hidden, default=0) if "..." in right else 0)
