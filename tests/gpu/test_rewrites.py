"""What rewrites put into engines for GPUs, against float64: our kernel, cuDNN's fused ones.

Legend: B = batch, H = heads, Q = queries, K = keys, D = head size.
"""

import copy

import pytest
import torch
from torch import nn

from compiler_worker.fx_rewrites.names import NAMES
from services.contracts.hardware.facts import DeviceFacts
from services.engines.torch_runtime.programs import lifted_weights
from tests.unit.compiler_worker.fx_rewrites.rewritten import Case
from tests.unit.compiler_worker.fx_rewrites.test_convolutions import Block

# The steps are 2**-11 and 2**-8; results are sums of some hundred rounded products.
MAX_REL_L2 = {torch.float16: 2e-3, torch.bfloat16: 1e-2}
HEADS, TOKENS = 3, 50


def operands(dtype: torch.dtype, queries: int, keys: int, size: int) -> list[torch.Tensor]:
    torch.manual_seed(queries)
    shapes = [(2, each, HEADS, size) for each in (queries, keys, keys)]
    # As a merged projection leaves them: heads behind tokens in memory.
    return [torch.randn(shape, device="cuda", dtype=dtype).transpose(1, 2) for shape in shapes]


def mask_of(form: str, queries: int, keys: int, dtype: torch.dtype) -> torch.Tensor | None:
    is_open = torch.rand(2, 1, queries, keys, device="cuda") > 0.3
    is_open[..., 0] = True
    match form:
        case "rows":
            return is_open
        case "one row":
            return is_open[:, :, :1]
        case "added":
            return torch.where(is_open, 0.5, float("-inf")).to(dtype).expand(2, HEADS, -1, -1)
        case _:
            return None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", ["rows", "one row", "added", "none"])
@pytest.mark.parametrize(("queries", "keys", "size"), [(1, 1, 16), (50, 50, 32), (130, 97, 64)])
def test_the_attention_kernel_is_attention(
    device: DeviceFacts, dtype: torch.dtype, form: str, queries: int, keys: int, size: int
) -> None:
    from compiler_worker.fx_rewrites.attention_kernel import attention

    q, k, v = operands(dtype, queries, keys, size)
    mask = mask_of(form, queries, keys, dtype)
    found = attention(q, k, v, mask, 0.2)
    wide = mask.double() if mask is not None and mask.dtype != torch.bool else mask
    wanted = nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), wide, scale=0.2
    )
    assert found.shape == wanted.shape
    assert float((found.double() - wanted).norm() / wanted.norm()) <= MAX_REL_L2[dtype]


def test_a_row_that_may_attend_nothing_is_zero(device: DeviceFacts) -> None:
    from compiler_worker.fx_rewrites.attention_kernel import attention

    q, k, v = operands(torch.float16, TOKENS, TOKENS, 32)
    mask = torch.ones(2, 1, 1, TOKENS, dtype=torch.bool, device="cuda")
    mask[1] = False
    found = attention(q, k, v, mask, 1.0)
    assert bool(found[0].abs().sum() > 0)
    assert bool((found[1] == 0).all())


@pytest.mark.parametrize("operand", ["query", "key", "value"])
def test_what_is_not_a_number_stays_none(device: DeviceFacts, operand: str) -> None:
    from compiler_worker.fx_rewrites.attention_kernel import attention

    q, k, v = given = operands(torch.float16, TOKENS, TOKENS, 32)
    given[["query", "key", "value"].index(operand)][0, 0, 3] = float("nan")
    found = attention(q, k, v, None, 0.2)
    wanted = nn.functional.scaled_dot_product_attention(q, k, v, scale=0.2)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert bool(found[0, 0].isnan().any())
    assert not found[1:].isnan().any()


def test_more_heads_than_an_axis_of_the_grid_has_places(device: DeviceFacts) -> None:
    from compiler_worker.fx_rewrites.attention_kernel import attention

    batch = 65_536 // HEADS + 1
    torch.manual_seed(0)
    q, k, v = torch.randn(3, batch, HEADS, 16, 16, device="cuda", dtype=torch.float16)
    found = attention(q, k, v, None, 0.2)
    wanted = nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), scale=0.2)
    # All heads, those beyond the 65,535th included.
    assert float((found.float() - wanted).abs().max()) <= MAX_REL_L2[torch.float16]


class Attending(nn.Module):
    """Attention between projections, a mask of valid tokens."""

    def __init__(self) -> None:
        super().__init__()
        for name in "qkvo":
            self.register_buffer(f"w{name}", torch.randn(96, 96) / 10)
            self.register_buffer(f"b{name}", torch.randn(96))

    def forward(self, x_BTW: torch.Tensor, valid_BT: torch.Tensor) -> torch.Tensor:
        q, k, v = (self._project(x_BTW, n).unflatten(2, (HEADS, 32)).transpose(1, 2) for n in "qkv")
        y = nn.functional.scaled_dot_product_attention(q, k, v, valid_BT[:, None, None, :])
        joined = y.transpose(1, 2).reshape(x_BTW.shape)
        return torch.relu(self._project(joined, "o"))

    def _project(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ getattr(self, f"w{name}") + getattr(self, f"b{name}")


def compiled(case: Case, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """What the rewritten graph answers after Inductor compiled it."""
    from torch._inductor import standalone_compile

    program = torch.export.export(case.graph, inputs, strict=False)
    arguments = [*lifted_weights(program).values(), *inputs]
    with torch.no_grad():
        code = standalone_compile(
            program.graph_module, arguments, dynamic_shapes="from_example_inputs"
        )
        [answer] = code(*arguments)
    assert isinstance(answer, torch.Tensor)
    return answer


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_encoder_runs_on_the_kernel(device: DeviceFacts, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = Attending().cuda()
    valid = torch.arange(TOKENS, device="cuda") < torch.tensor([[TOKENS], [7]], device="cuda")
    x = torch.randn(2, TOKENS, 96, device="cuda")
    case = Case(copy.deepcopy(module).to(dtype), (x.to(dtype), valid), NAMES)
    assert case.counts["short_attention"] == case.counts["activations"] == 1
    assert case.counts["projections"] == 2
    found = compiled(case, (x.to(dtype), valid)).double()
    wanted = module.double()(x.double(), valid)
    assert float((found - wanted).norm() / wanted.norm()) <= MAX_REL_L2[dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("batch", [1, 4])
def test_an_image_network_runs_on_fused_convolutions(
    device: DeviceFacts, dtype: torch.dtype, batch: int
) -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    module = Block().eval().cuda()
    image = torch.randn(batch, 3, 33, 40, device="cuda")
    case = Case(copy.deepcopy(module).to(dtype), (image.to(dtype),), NAMES)
    assert case.counts["fused_convolutions"] == 3
    found = compiled(case, (image.to(dtype),)).double()
    with torch.no_grad():
        wanted = module.double()(image.double())
    limit = {**MAX_REL_L2, torch.float32: 1e-5}[dtype]
    assert float((found - wanted).norm() / wanted.norm()) <= limit
