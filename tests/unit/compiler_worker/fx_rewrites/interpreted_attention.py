"""Runs the attention kernel on the CPU in Triton's interpreter: `python -m ...` prints JSON.

A process of its own, because Triton reads TRITON_INTERPRET=1 when it is imported. For each case it
tells how far the kernel's answer is from the plain mathematical one, and then the shapes of
operands that were copied before the kernel read them.

Legend: B = batch, H = heads, Q = queries, K = keys, D = head size.
"""

import itertools
import json
import math
from collections.abc import Callable

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

BATCH, HEADS, SCALE = 2, 3, 0.2
# bfloat16 is not among them: the interpreter computes with numpy, which has no such type.
DTYPES = {"float16": torch.float16, "float32": torch.float32}
FORMS = ("none", "rows", "one row", "by head", "added", "added by head", "closed")
# Queries, keys, head size: less than a block, then more than one of keys, and of queries.
SIZES = ((1, 1, 16), (20, 70, 16), (70, 20, 32))
LAYOUTS = ("tokens", "channels", "mixed")
# Of all operands, where layouts are compared.
LAYOUT_SHAPE = (BATCH, HEADS, 24, 16)
# Queries, keys or values, and the row: of a block of keys of its own, or one that is masked.
NAN_PLACES = {"a query": (0, 2), "a key": (1, 69), "a masked key": (1, 3), "a value": (2, 0)}
# Batch, heads, queries, and how many of them one program takes.
LARGE_GRID = (8192, 12, 130, 64)
Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def plain_attention(
    q_BHQD: torch.Tensor, k_BHKD: torch.Tensor, v_BHKD: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """`softmax(scale * q @ k.T + mask) @ v` in float64; a row that may attend nothing is zero."""
    scores = SCALE * q_BHQD.double() @ k_BHKD.double().transpose(2, 3)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask.double()
    weights = torch.exp(scores)
    total = weights.sum(3, keepdim=True)
    return torch.where(total == 0, 0.0, weights / total) @ v_BHKD.double()


def mask_of(form: str, queries: int, keys: int, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask of truths or numbers; all but that of `closed` leave each row the first key."""
    is_open = torch.rand(BATCH, HEADS, queries, keys) > 0.3
    is_open[..., 0] = True
    numbers = torch.where(is_open, torch.randn(is_open.shape), -math.inf).to(dtype)
    match form:
        case "rows":
            return is_open[:, :1]
        case "one row":
            return is_open[:, :1, :1]
        case "by head":
            return is_open[:1]
        case "added":
            return numbers[:, :1].expand(-1, HEADS, -1, -1)
        case "added by head":
            return numbers[:1, :, :1]
        case "closed":
            is_open[1, :, -1] = False
            return is_open
        case _:
            return None


def operands(layout: str, queries: int, keys: int, size: int) -> Operands:
    """Queries, keys and values as they come from rows of tokens, or from channels of an image."""
    tokens = [torch.randn(BATCH, n, HEADS, size).transpose(1, 2) for n in (queries, keys, keys)]
    channels = [torch.randn(BATCH, HEADS, size, n).transpose(2, 3) for n in (queries, keys, keys)]
    q, k, v = channels if layout == "channels" else tokens
    return (channels[0] if layout == "mixed" else q), k, v


def distances() -> dict[str, float]:
    """Largest difference of any element, by case."""
    from compiler_worker.fx_rewrites.attention_kernel import attention

    found = {}

    def compare(case: str, given: Operands, mask: torch.Tensor | None) -> None:
        answer = attention(*given, mask, SCALE)
        wanted = plain_attention(*given, mask)
        assert answer.shape == wanted.shape
        found[case] = float((answer.double() - wanted).abs().max())

    for (name, dtype), form, sizes in itertools.product(DTYPES.items(), FORMS, SIZES):
        q, k, v = (each.to(dtype) for each in operands("tokens", *sizes))
        mask = mask_of(form, *sizes[:2], dtype)
        compare(f"{name}, {form}, {sizes}", (q, k, v), mask)
    _, _, tokens, size = LAYOUT_SHAPE
    for layout in LAYOUTS:
        compare(f"float32, {layout}", operands(layout, tokens, tokens, size), None)
    return found


def not_numbers() -> dict[str, list[bool]]:
    """By where a NaN stands: which queries of the first head answer NaN, here and in torch."""
    from compiler_worker.fx_rewrites.attention_kernel import attention

    found = {}
    for place, (operand, row) in NAN_PLACES.items():
        given = operands("tokens", 20, 70, 16)
        given[operand][0, 0, row] = math.nan
        mask = torch.ones(BATCH, 1, 1, 70, dtype=torch.bool)
        mask[..., 3] = False
        wanted = functional.scaled_dot_product_attention(*given, mask, scale=SCALE)
        for name, answer in (("kernel", attention(*given, mask, SCALE)), ("torch", wanted)):
            assert not answer[1:].isnan().any()
            found[f"{place}, {name}"] = answer[0, 0].isnan().any(1).tolist()
    return found


def grid() -> list[int]:
    """The launch of more heads in all than an axis beyond the first of CUDA's has places."""
    from compiler_worker.fx_rewrites.attention_kernel import launch_grid

    return list(launch_grid(*LARGE_GRID))


def copies(layout: str) -> list[list[int]]:
    """Shapes of the operands that a call copies."""
    from compiler_worker.fx_rewrites.attention_kernel import attention

    _, _, tokens, size = LAYOUT_SHAPE
    given = operands(layout, tokens, tokens, size)
    return _cloned(lambda: attention(*given, None, SCALE))


def _cloned(call: Callable[[], object]) -> list[list[int]]:
    # A dispatch mode would not see what the op does inside.
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        call()
    return [event.input_shapes[0] for event in seen.events() or () if event.name == "aten::clone"]


if __name__ == "__main__":
    torch.manual_seed(0)
    told = {"distances": distances(), "nan": not_numbers(), "grid": grid()}
    print(json.dumps({**told, "copies": {n: copies(n) for n in LAYOUTS}}))
