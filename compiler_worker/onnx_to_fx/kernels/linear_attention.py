"""Attention whose state is one matrix per head, updated step by step.

Legend: B = batch, T = time, H = query heads, G = key/value heads, K = key size, V = value size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compiler_worker.onnx_to_fx.kernels.time_loop import States, run_steps


def linear_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    past: torch.Tensor | None,
    decay: torch.Tensor | None,
    beta: torch.Tensor | None,
    heads: tuple[int, int],
    scale: float,
    is_unrolled: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the recurrence in float32 or wider.

    Args:
        query: [B, T, H * K].
        key: [B, T, G * K].
        value: [B, T, G * V].
        past: state before the first step [B, G, K, V]; zeros where there is none.
        decay: logarithm of what is kept of the state, [B, T, G] or [B, T, G * K].
        beta: how far the state is corrected toward the value, [B, T, G] or [B, T, 1].
        heads: H and G.
        scale: factor of the outputs; 0 means 1 / sqrt(K).
        is_unrolled: see `run_steps`.

    Returns:
        Outputs [B, T, H * V] and the last state [B, G, K, V].
    """
    num_q, num_kv = heads
    wide = torch.promote_types(query.dtype, torch.float32)
    q_TBHK, k_TBGK, v_TBGV = (
        _by_head(x, n).to(wide) for x, n in ((query, num_q), (key, num_kv), (value, num_kv))
    )
    size_k, size_v = q_TBHK.shape[-1], v_TBGV.shape[-1]
    batch = query.shape[0]
    sequences = [q_TBHK, k_TBGK, v_TBGV]
    if decay is not None:
        sequences.append(_by_head(decay, num_kv).to(wide).exp())
    if beta is not None:
        sequences.append(beta.transpose(0, 1).to(wide).unsqueeze(-1))

    def step(
        states: States, now: Sequence[torch.Tensor], _: Sequence[torch.Tensor]
    ) -> tuple[States, torch.Tensor]:
        return _step(states[0], now, decay is not None, beta is not None, num_q // num_kv)

    state = (
        torch.zeros([batch, num_kv, size_k, size_v], dtype=wide, device=query.device)
        if past is None
        else past.to(wide)
    )
    (state,), out_TBHV = run_steps(
        step, [state], sequences, (), [batch, num_q, size_v], is_unrolled=is_unrolled
    )
    factor = scale or size_k**-0.5
    out = (out_TBHV * factor).transpose(0, 1).flatten(2)
    return out.to(query.dtype), state.to(query.dtype if past is None else past.dtype)


def _by_head(x_BTN: torch.Tensor, heads: int) -> torch.Tensor:
    return torch.unflatten(x_BTN, 2, [heads, -1]).transpose(0, 1)


def _step(
    state_BGKV: torch.Tensor, now: Sequence[torch.Tensor], decays: bool, corrects: bool, group: int
) -> tuple[States, torch.Tensor]:
    q_BHK, k_BGK, v_BGV, *rest = now
    if decays:
        state_BGKV = state_BGKV * rest[0].unsqueeze(-1)
    if corrects:
        recalled_BGV = torch.einsum("bgkv,bgk->bgv", state_BGKV, k_BGK)
        v_BGV = rest[-1] * (v_BGV - recalled_BGV)
    state_BGKV = state_BGKV + k_BGK.unsqueeze(-1) * v_BGV.unsqueeze(-2)
    # Query heads lie side by side by the state that they share.
    q_BGRK = torch.unflatten(q_BHK, 1, [-1, group])
    out_BGRV = torch.einsum("bgrk,bgkv->bgrv", q_BGRK, state_BGKV)
    return [state_BGKV], out_BGRV.flatten(1, 2)
