"""Element types that torch has few kernels for: every cast and operation to the last bit."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx.helper import tensor_dtype_to_np_dtype

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from compiler_worker.onnx_to_fx.dtypes import array_sharing_memory, tensor_sharing_memory
from services.contracts.errors import UnsupportedGraphError
from tests.unit.compiler_worker.onnx_to_fx.graphs import model

P = onnx.TensorProto
FLOAT8 = (P.FLOAT8E4M3FN, P.FLOAT8E4M3FNUZ, P.FLOAT8E5M2, P.FLOAT8E5M2FNUZ)
NARROW = (P.INT4, P.UINT4, P.INT2, P.UINT2)
WIDE = (np.uint16, np.uint32, np.uint64)
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def numpy_is_quiet() -> Iterator[None]:
    """NaN, infinities and numbers out of range are cast on purpose."""
    with np.errstate(all="ignore"):
        yield


def type_text(elem_type: int) -> str:
    """An element type as ONNX's text form spells it."""
    return onnx.TensorProto.DataType.Name(elem_type).lower()


def cast_module(source: int, target: int, attributes: str = "") -> torch.fx.GraphModule:
    """A module of one Cast."""
    inside = f"<to: int = {target}{attributes}>"
    text = f"g ({type_text(source)}[N] x) => ({type_text(target)}[N] y) {{ y = Cast {inside} (x) }}"
    return graph_module_from_onnx(model(text, opset=25))


def run(module: torch.fx.GraphModule, *arrays: np.ndarray) -> np.ndarray:
    """Feed arrays and return the only output as an array."""
    (got,) = module(*map(tensor_sharing_memory, arrays))
    return array_sharing_memory(got)


def floats(dtype: type) -> np.ndarray:
    """Every float16, every upper half of a float32, and what is next to their middles."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
    uppers = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
    values = np.concatenate([halves, uppers]).astype(dtype)
    nexts = [np.nextafter(values, dtype(limit)) for limit in (np.inf, -np.inf)]
    return np.concatenate([values, *nexts]) if dtype != np.float16 else values


def assert_same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bit for bit, but for which NaN it is."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


def nearest(values: np.ndarray, kind: np.dtype, *, saturate: bool) -> np.ndarray:
    """Round to the nearest element of a type (ties to the even code), from a list of them all."""
    codes = np.arange(1 << ml_dtypes.finfo(kind).bits - 1, dtype=np.uint8)
    elements = codes.view(kind).astype(np.float64)
    elements = elements[np.isfinite(elements)]
    # One more step than there are elements: what rounds to it is out of range.
    elements = np.append(elements, 2 * elements[-1] - elements[-2])
    middles = (elements[1:] + elements[:-1]) / 2
    size = np.abs(values.astype(np.float64))
    index = np.searchsorted(middles, size)
    is_tie = np.append(middles, np.nan)[index] == size
    index += is_tie & (index % 2 == 1)
    past = np.inf if kind == ml_dtypes.float8_e5m2 else np.nan
    elements[-1] = elements[-2] if saturate else past
    rounded = np.where(np.isnan(size), np.nan, np.copysign(elements[index], values))
    # Of these types, those with "uz" in their name have no negative zero.
    return np.where(rounded == 0, 0.0, rounded) if "uz" in kind.name else rounded


CASTS = [(target, saturate) for target in FLOAT8 for saturate in (1, 0)] + [(P.FLOAT4E2M1, 1)]


@pytest.mark.parametrize("source", [P.FLOAT, P.FLOAT16, P.DOUBLE])
@pytest.mark.parametrize(("target", "saturate"), CASTS)
def test_floats_become_small_floats(source: int, target: int, saturate: int) -> None:
    values, kind = floats(tensor_dtype_to_np_dtype(source).type), tensor_dtype_to_np_dtype(target)
    # FLOAT4E2M1 has no NaN, and ONNX does not say what becomes of one.
    values = values[~np.isnan(values)] if target == P.FLOAT4E2M1 else values
    got = run(cast_module(source, target, f", saturate: int = {saturate}"), values)
    assert_same(got.view(kind), nearest(values, kind, saturate=bool(saturate)))
    if source != P.DOUBLE and not saturate:
        assert_same(got, values.astype(kind))


@pytest.mark.parametrize("target", [P.FLOAT, P.FLOAT16, P.DOUBLE, P.BFLOAT16])
@pytest.mark.parametrize("source", [*FLOAT8, P.FLOAT8E8M0, P.FLOAT4E2M1])
def test_small_floats_become_floats(source: int, target: int) -> None:
    count = 16 if source == P.FLOAT4E2M1 else 256
    codes = np.arange(count, dtype=np.uint8).view(tensor_dtype_to_np_dtype(source))
    want = codes.astype(np.float32).astype(tensor_dtype_to_np_dtype(target))
    assert_same(run(cast_module(source, target), codes), want)


@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
def test_floats_become_powers_of_two(round_mode: str) -> None:
    values = np.abs(floats(np.float32))
    normal = values[(values >= np.finfo(np.float32).tiny) & (values < np.inf)]
    got = run(cast_module(P.FLOAT, P.FLOAT8E8M0, f', round_mode: string = "{round_mode}"'), normal)
    want = onnx.numpy_helper.to_float8e8m0(normal, saturate=True, round_mode=round_mode)
    assert_same(got, want)


def test_powers_of_two_at_their_ends() -> None:
    least = 2.0**-127
    values = np.array([0, least, least * 1.25, np.inf, np.nan, 3e38], np.float32)
    got = run(cast_module(P.FLOAT, P.FLOAT8E8M0), values).view(np.uint8)
    assert got.tolist() == [0, 0, 1, 254, 255, 254]


@pytest.mark.parametrize(("source", "target"), list(itertools.product((P.INT32, P.INT8), NARROW)))
def test_upper_bits_are_dropped(source: int, target: int) -> None:
    values = np.arange(-128, 128).astype(tensor_dtype_to_np_dtype(source))
    got = run(cast_module(source, target), values)
    want = values.astype(tensor_dtype_to_np_dtype(target))
    np.testing.assert_array_equal(got, want.astype(got.dtype))


@pytest.mark.parametrize(
    "target", [P.UINT16, P.UINT32, P.UINT64, P.INT8, P.FLOAT, P.DOUBLE, P.BOOL]
)
@pytest.mark.parametrize("source", [P.UINT16, P.UINT32, P.UINT64, P.INT64])
def test_integers_become_others_and_floats(source: int, target: int) -> None:
    kind = tensor_dtype_to_np_dtype(source)
    ends = np.array(
        [0, 1, np.iinfo(kind).max, np.iinfo(kind).max // 2 + 1, np.iinfo(kind).min], kind
    )
    values = np.concatenate([ends, RNG.integers(*ends[[-1, 2]], 4000, kind, endpoint=True)])
    got = run(cast_module(source, target), values)
    np.testing.assert_array_equal(got, values.astype(tensor_dtype_to_np_dtype(target)))


BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.floordiv,
    "Mod": operator.mod,
    "Max": np.maximum,
    "Min": np.minimum,
    "Less": operator.lt,
    "GreaterOrEqual": operator.ge,
    "Equal": operator.eq,
    "BitwiseXor": operator.xor,
}


def unsigned(kind: type, count: int = 3000) -> np.ndarray:
    """Numbers of every magnitude, with both ends."""
    bits = np.iinfo(kind).bits
    values = RNG.integers(0, np.iinfo(kind).max, count, kind, endpoint=True)
    shifted = values >> RNG.integers(0, bits, count).astype(kind)
    return np.concatenate([np.array([0, 1, np.iinfo(kind).max], kind), shifted])


@pytest.mark.parametrize(("name", "kind"), list(itertools.product(BINARY, WIDE)))
def test_unsigned_arithmetic(name: str, kind: type) -> None:
    text = kind.__name__
    result = "bool" if BINARY[name](kind(1), kind(1)).dtype == np.bool_ else text
    graph = f"g ({text}[N] x, {text}[N] y) => ({result}[N] z) {{ z = {name}(x, y) }}"
    x, y = unsigned(kind), unsigned(kind)[::-1].copy()
    if name in ("Div", "Mod"):
        y = np.maximum(y, kind(1))
    np.testing.assert_array_equal(
        run(graph_module_from_onnx(model(graph)), x, y), BINARY[name](x, y)
    )


@pytest.mark.parametrize(("direction", "kind"), list(itertools.product(("LEFT", "RIGHT"), WIDE)))
def test_unsigned_shifts(direction: str, kind: type) -> None:
    text, bits = kind.__name__, np.iinfo(kind).bits
    node = f'z = BitShift <direction = "{direction}"> (x, y)'
    module = graph_module_from_onnx(
        model(f"g ({text}[N] x, {text}[N] y) => ({text}[N] z) {{ {node} }}")
    )
    x = unsigned(kind)
    y = RNG.integers(0, bits, x.size).astype(kind)
    want = x << y if direction == "LEFT" else x >> y
    np.testing.assert_array_equal(run(module, x, y), want)
    assert not run(module, x, np.full_like(x, bits)).any()


def test_unsigned_numbers_are_sorted_by_size() -> None:
    text = "g (uint64[N] x) => (uint64[K] y, int64[K] i) { y, i = TopK(x, k) }"
    module = graph_module_from_onnx(model(text, k=np.array([3])))
    values, places = module(torch.tensor([1, 2**63 + 5, 7, 2**64 - 1], dtype=torch.uint64))
    assert values.tolist() == [2**64 - 1, 2**63 + 5, 7]
    assert places.tolist() == [3, 1, 2]


def test_bits_are_kept() -> None:
    bits = np.arange(-128, 128, dtype=np.int8)
    for elem_type in (*FLOAT8, P.FLOAT8E8M0, P.UINT8):
        there = f"h = BitCast <to = {elem_type}> (x)"
        text = f"g (int8[N] x) => (int8[N] y) {{ {there}  y = BitCast <to = 3> (h) }}"
        np.testing.assert_array_equal(
            run(graph_module_from_onnx(model(text, opset=26)), bits), bits
        )


def test_float32_bits_are_those_of_a_float32_in_a_float64_import() -> None:
    text = "g (float[N] x) => (int32[N] y) { y = BitCast <to = 6> (x) }"
    module = graph_module_from_onnx(model(text, opset=26), float_dtype=torch.float64)
    (bits,) = module(torch.tensor([1.0, -2.5], dtype=torch.float64))
    assert bits.tolist() == np.array([1.0, -2.5], np.float32).view(np.int32).tolist()


def test_bits_of_another_number_are_refused() -> None:
    text = "g (int4[N] x) => (int8[N] y) { y = BitCast <to = 3> (x) }"
    with pytest.raises(UnsupportedGraphError, match="INT4 and INT8 have different numbers of bits"):
        graph_module_from_onnx(model(text, opset=26))


@pytest.mark.parametrize(
    "kind",
    [ml_dtypes.int4, ml_dtypes.uint2, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn, np.uint64],
)
def test_elements_move_as_they_are(kind: type) -> None:
    name = type_text(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
    nodes = "t = Transpose(x)  r = Reshape(t, s)  y = Concat <axis = 0> (r, w)"
    text = f"g ({name}[2, 3] x) => ({name}[12] y) {{ {nodes} }}"
    weight = np.array([1, 0, 1, 1, 0, 1], np.float32).astype(kind)
    x = np.array([[0, 1, 0], [1, 1, 0]], np.float32).astype(kind)
    module = graph_module_from_onnx(model(text, s=np.array([6]), w=weight))
    want = tensor_sharing_memory(np.concatenate([x.T.reshape(6), weight]))
    (got,) = module(tensor_sharing_memory(x))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(array_sharing_memory(got), array_sharing_memory(want))


def test_moving_the_module_leaves_small_floats_as_they_are() -> None:
    text = "g (float[N] x) => (float[N] y) { f = Cast <to = 1> (w)  y = Add(x, f) }"
    weight = np.array([0.5, -448], ml_dtypes.float8_e4m3fn)
    module = graph_module_from_onnx(model(text, w=weight)).double()
    (y,) = module(torch.zeros(2, dtype=torch.float64))
    assert y.dtype == torch.float64
    assert y.tolist() == [0.5, -448.0]
