"""Attention for short sequences as one Triton kernel, compiled into the engine.

Legend: B = batch, H = heads, Q = queries, K = keys, D = head size.

torch's fused kernels that take a mask are written for long sequences. This one reads the
mask as it is (one row per batch entry, or whole), and queries, keys and values where the
merged projection left them. Imported where CUDA code is generated, never where it runs:
Inductor copies the kernel's source into what it generates.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

_BLOCK_Q = 64
_BLOCK_K = 64
_SMALLEST_BLOCK = 16
# exp2 is one instruction; exp is that and a product.
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit  # type: ignore[untyped-decorator]
def _own_rows(  # type: ignore[no-untyped-def]
    NUM_HEADS: tl.constexpr, NUM_Q: tl.constexpr, BLOCK_Q: tl.constexpr
):
    """Batch entry, head and queries [BLOCK_Q] of this program; see `launch_grid`."""
    blocks: tl.constexpr = (NUM_Q + BLOCK_Q - 1) // BLOCK_Q
    entry = tl.program_id(0) // blocks // NUM_HEADS
    head = tl.program_id(0) // blocks % NUM_HEADS
    rows = tl.program_id(0) % blocks * BLOCK_Q + tl.arange(0, BLOCK_Q)
    # Its elements may be more than 32 bits count.
    return entry.to(tl.int64), head, rows


@triton.jit  # type: ignore[untyped-decorator]
def _added_scores(  # type: ignore[no-untyped-def]
    mask,
    rows,
    columns,
    row_step,
    column_step,
    NUM_Q: tl.constexpr,
    NUM_K: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    IS_BOOL: tl.constexpr,
):
    """What the mask of one head adds to a block of scores, float32 [rows, columns] or [1, columns].

    Args:
        mask: pointer to the head's mask.
        rows: queries of the block, int [rows].
        columns: keys of the block, int [columns].
        row_step: elements of the mask from one query to the next.
        column_step: elements from one key to the next.
        NUM_Q: Q.
        NUM_K: K.
        HAS_ROWS: whether the mask differs by query.
        IS_BOOL: whether it says which keys are attended, and is not added as it is.
    """
    is_key = columns < NUM_K
    if HAS_ROWS:
        place = mask + rows[:, None] * row_step + columns[None, :] * column_step
        given = tl.load(place, mask=(rows < NUM_Q)[:, None] & is_key[None, :], other=0)
    else:
        given = tl.load(mask + columns * column_step, mask=is_key, other=0)[None, :]
    if IS_BOOL:
        # Added as torch does: what is not a number stays none behind a mask.
        given = tl.where(given != 0, 0.0, float("-inf"))
    return given.to(tl.float32)


@triton.jit
def _with_block(scores, v_place, is_key, highest, total, result):  # type: ignore[no-untyped-def]
    """Peaks, sums and results of the rows, once a block of keys is counted too.

    Args:
        scores: of the block, times log2(e), float32 [rows, keys].
        v_place: pointers to its values [keys, D].
        is_key: whether a key is none beyond the last, bool [keys].
        highest: peak of each row so far, float32 [rows].
        total: sum of its weights so far, float32 [rows].
        result: sum of its weighted values so far, float32 [rows, D].
    """
    peak = tl.maximum(highest, tl.max(scores, 1))
    # A row that may attend nothing so far: any finite number keeps NaN away.
    base = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp2(scores - base[:, None])
    kept = tl.exp2(highest - base)
    v = tl.load(v_place, mask=is_key[:, None], other=0.0)
    # Rescaled to the peak so far: one pass over the keys, no scores in memory.
    result = tl.dot(weights.to(v.dtype), v, result * kept[:, None])
    return peak, total * kept + tl.sum(weights, 1), result


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    q_BHQD,
    k_BHKD,
    v_BHKD,
    mask,
    out_BQHD,
    q_b,
    q_h,
    q_q,
    k_b,
    k_h,
    k_k,
    v_b,
    v_h,
    v_k,
    m_b,
    m_h,
    m_q,
    m_k,
    SCALE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_Q: tl.constexpr,
    NUM_K: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    IS_BOOL: tl.constexpr,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    batch, head, rows = _own_rows(NUM_HEADS, NUM_Q, BLOCK_Q)
    keys = tl.arange(0, BLOCK_K)
    sizes = tl.arange(0, D)
    is_row = rows < NUM_Q
    q_place = q_BHQD + batch * q_b + head * q_h + rows[:, None] * q_q + sizes[None, :]
    q = tl.load(q_place, mask=is_row[:, None], other=0.0)
    k_start = k_BHKD + batch * k_b + head * k_h
    v_start = v_BHKD + batch * v_b + head * v_h
    m_start = mask + batch * m_b + head * m_h
    highest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    result = tl.zeros([BLOCK_Q, D], tl.float32)
    for start in range(0, NUM_K, BLOCK_K):
        column = start + keys
        is_key = column < NUM_K
        k_place = k_start + column[None, :] * k_k + sizes[:, None]
        k = tl.load(k_place, mask=is_key[None, :], other=0.0)
        scores = tl.dot(q, k) * (SCALE * _LOG2_E)
        if HAS_MASK:
            added = _added_scores(m_start, rows, column, m_q, m_k, NUM_Q, NUM_K, HAS_ROWS, IS_BOOL)
            scores += added * _LOG2_E
        # After the mask: what lies beyond the last key was loaded as 0, and would count as a key.
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        v_place = v_start + column[:, None] * v_k + sizes[None, :]
        highest, total, result = _with_block(scores, v_place, is_key, highest, total, result)
    # Not "above zero": a NaN among the keys is one in the answer.
    result = tl.where(total[:, None] == 0, 0.0, result / total[:, None])
    o_start = out_BQHD + (batch * NUM_Q * NUM_HEADS + head) * D
    o_place = o_start + rows[:, None] * (NUM_HEADS * D) + sizes[None, :]
    tl.store(o_place, result.to(out_BQHD.dtype.element_ty), mask=is_row[:, None])


def _with_rows(operand: torch.Tensor) -> torch.Tensor:
    """The operand with its last axis contiguous, as the kernel reads it; copied if it was not."""
    # Heads split off an image's channels leave the positions as the contiguous axis.
    return operand if operand.stride(3) == 1 else operand.contiguous()


def launch_grid(batch: int, heads: int, queries: int, block_q: int) -> tuple[int]:
    """One program per block of queries, all on the first axis: CUDA's others end at 65,535.

    Args:
        batch: B.
        heads: H.
        queries: Q.
        block_q: queries of one program.
    """
    return (triton.cdiv(queries, block_q) * heads * batch,)


@triton_op("smelt::attention", mutates_args={})
def attention(
    q_BHQD: torch.Tensor,
    k_BHKD: torch.Tensor,
    v_BHKD: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """`softmax(scale * q @ k.T + mask) @ v`; a row that may attend nothing is zero.

    D must be a power of two from 16 on, and each axis of the mask of size 1 or that of
    [B, H, Q, K].

    Args:
        q_BHQD: float16 or bfloat16.
        k_BHKD: of the same type.
        v_BHKD: of the same type.
        mask: added to the scaled scores, or bool, True where a key is attended; None attends all.
        scale: of the products, as `1 / sqrt(D)`.
    """
    q_BHQD, k_BHKD, v_BHKD = (_with_rows(each) for each in (q_BHQD, k_BHKD, v_BHKD))
    batch, heads, queries, size = q_BHQD.shape
    keys = k_BHKD.shape[2]
    out_BQHD = q_BHQD.new_empty((batch, queries, heads, size))
    block_q = min(_BLOCK_Q, max(_SMALLEST_BLOCK, triton.next_power_of_2(queries)))
    block_k = min(_BLOCK_K, max(_SMALLEST_BLOCK, triton.next_power_of_2(keys)))
    steps: tuple[int, ...] = (0, 0, 0, 0)
    if mask is not None:
        mask = mask.contiguous()
        # A step of 0 reads the one row again: the mask is never expanded in memory.
        steps = tuple(0 if n == 1 else mask.stride(axis) for axis, n in enumerate(mask.shape))
    wrap_triton(_attend)[launch_grid(batch, heads, queries, block_q)](
        q_BHQD,
        k_BHKD,
        v_BHKD,
        q_BHQD if mask is None else mask,
        out_BQHD,
        *q_BHQD.stride()[:3],
        *k_BHKD.stride()[:3],
        *v_BHKD.stride()[:3],
        *steps,
        SCALE=scale,
        NUM_HEADS=heads,
        NUM_Q=queries,
        NUM_K=keys,
        HAS_MASK=mask is not None,
        HAS_ROWS=mask is not None and mask.shape[2] > 1,
        IS_BOOL=mask is not None and mask.dtype == torch.bool,
        D=size,
        BLOCK_Q=block_q,
        BLOCK_K=block_k,
        num_warps=4,
        num_stages=2,
    )
    return out_BQHD.transpose(1, 2)
