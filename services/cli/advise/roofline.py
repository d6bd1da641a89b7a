"""What a run has to do at given sizes, and how fast a device could do it: the roofline.

A run takes at least as long as its products take at the peak rate, and as what has to be moved
takes at the memory's. What is moved is counted as compilers leave it at best: products,
convolutions, attention and recurrences read their inputs and write their outputs once, all else is
fused into them.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from math import inf, prod
from typing import TYPE_CHECKING, Final, NamedTuple

from services.cli.advise.op_flops import CONVOLUTIONS, PRODUCTS, RECURRENCES, Shape, op_flops
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.instructions import missing_instructions
from services.contracts.hardware.kinds import Precision

if TYPE_CHECKING:
    import onnx

_PRECISIONS = (Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8, Precision.FP8)
# Published peaks: dense, sums in fp32, boost clock, fp32 without TF32; of NVIDIA's data sheets and
# architecture white papers, halved where those count sparsity. A card that is not here counts as
# the first of its generation. Columns: generation; what the driver's name of it contains, blanks
# as _; TFLOP/s in these precisions, 0 without instructions; and GB/s of its memory.
_CARDS = """
cuda-sm70  V100            15.7  125   0     62.8   0      900
cuda-sm75  T4              8.1   65    0     130    0      320
cuda-sm80  A100            19.5  312   312   624    0      1555
cuda-sm80  A100-SXM4-80GB  19.5  312   312   624    0      2039
cuda-sm80  A100_80GB_PCIe  19.5  312   312   624    0      1935
cuda-sm80  A30             10.3  165   165   330    0      933
cuda-sm86  A10             31.2  125   125   250    0      600
cuda-sm86  A40             37.4  149.7 149.7 299.3  0      696
cuda-sm89  L4              30.3  121   121   242    242    300
cuda-sm89  L40S            91.6  362   362   733    733    864
cuda-sm89  RTX_4090        82.6  165.2 165.2 660.6  330.3  1008
cuda-sm90  H100            66.9  989.4 989.4 1978.9 1978.9 3350
cuda-sm90  H100_PCIe       51.2  756   756   1513   1513   2000
cuda-sm90  H200            66.9  989.4 989.4 1978.9 1978.9 4800
cuda-sm100 B200            75    2250  2250  4500   4500   7700
cuda-sm120 RTX_5090        104.8 209.5 209.5 838    419    1792
cuda-sm120 RTX_PRO_6000    125   503.8 503.8 1007.6 1007.6 1792
"""
_COUNTED = PRODUCTS | CONVOLUTIONS | RECURRENCES
# Bytes of a number of a product, of 4 in fp32; weights alone are computed with in fp32.
_SHARES: Final = {
    **dict.fromkeys(Precision, 1.0),
    **dict.fromkeys((Precision.FP16, Precision.BF16), 0.5),
    **dict.fromkeys((Precision.INT8, Precision.FP8), 0.25),
}
# How many times as many numbers as in fp32 an instruction multiplies, by vendors' manuals: VNNI,
# AVX512_BF16; and tiles of AMX beside vectors of AVX-512.
_TIMES: Final = {Precision.BF16: 2.0, Precision.INT8: 4.0}
_AMX_TIMES: Final = {Precision.BF16: 16.0, Precision.INT8: 32.0}
# Products that numpy's library leaves to one thread, whose own time other load hardly changes.
_SIDE = 64
_STACK = 64
_COPIED_BYTES = 2**25


class BucketWork(NamedTuple):
    """What one run has to do.

    Attributes:
        flops_by_op: of products, convolutions, attention and recurrences.
        num_bytes: that have to be moved in fp32.
        not_counted: by name of the op, how many have no formula or no known shape.
    """

    flops_by_op: Mapping[str, float]
    num_bytes: float
    not_counted: Mapping[str, int]

    @property
    def flops(self) -> float:
        """Of all ops."""
        return sum(self.flops_by_op.values())

    @property
    def intensity(self) -> float:
        """FLOPs for each byte in fp32; 0 where nothing is moved."""
        return self.flops / self.num_bytes if self.num_bytes else 0.0


class DevicePeak(NamedTuple):
    """What a device reaches at most.

    Attributes:
        flops_per_s: by precision; those that it has no instructions for are left out.
        bytes_per_s: of its memory.
        source: where the figures are from.
    """

    flops_per_s: Mapping[Precision, float]
    bytes_per_s: float
    source: str

    def least_s(self, work: BucketWork, precision: Precision) -> float | None:
        """Seconds below which no run is; None for a precision that the device does not have."""
        if not (flops_per_s := self.flops_per_s.get(precision)):
            return None
        moved_s = work.num_bytes * _SHARES[precision] / self.bytes_per_s
        return max(work.flops / flops_per_s, moved_s)

    def limit(self, work: BucketWork) -> str:
        """What a run in fp32 waits for."""
        moved_s = work.num_bytes / self.bytes_per_s
        is_busy = work.flops / self.flops_per_s[Precision.FP32] > moved_s
        return "products" if is_busy else "memory"


def bucket_work(model: onnx.ModelProto, sizes: Mapping[str, int]) -> BucketWork:
    """Count a run's FLOPs and bytes; external data is not needed.

    Args:
        model: a master.
        sizes: of its dynamic dimensions.
    """
    shapes, widths = _values(model, sizes)
    weights = {each.name for each in model.graph.initializer}
    moved = [value.name for value in (*model.graph.input, *model.graph.output)]
    flops_by_op = Counter[str]()
    not_counted = Counter[str]()
    for node in model.graph.node:
        if node.domain in ("", "ai.onnx") and node.op_type in _COUNTED:
            if (flops := op_flops(node, shapes)) is None:
                not_counted[node.op_type] += 1
                continue
            flops_by_op[node.op_type] += round(flops)
            moved += [*node.input, *node.output]
        elif node.op_type == "Gather" and node.input[0] in weights:
            # As many rows of a table are read as are written.
            moved += [node.output[0]] * 2
        elif node.domain not in ("", "ai.onnx") or any(
            each.HasField("g") for each in node.attribute
        ):
            not_counted[node.op_type] += 1
    num_bytes = sum(prod(shapes[name]) * widths[name] for name in moved if name in shapes)
    return BucketWork(dict(flops_by_op), num_bytes, dict(not_counted))


def device_peak(generation: str, device_name: str = "") -> DevicePeak | None:
    """The peak of a device; None where it is neither published nor this host's processor.

    Args:
        generation: as devices name theirs.
        device_name: as the driver gives it; without one the first card of the generation.
    """
    if Generation.parse(generation).platform is Platform.CPU:
        return _host_peak(generation, device_name)
    if (card := published_peak(generation, device_name)) is None:
        return None
    name, flops_per_s, bytes_per_s = card
    return DevicePeak(flops_per_s, bytes_per_s, f"published for {name}")


@cache
def _host_peak(generation: str, device_name: str) -> DevicePeak | None:
    """By a product and a copy here, if this host is such a device."""
    from services.engines.device.device_probe import probe_device

    here = probe_device(Platform.CPU)
    parsed = Generation.parse(generation)
    if device_name not in ("", here.name) or not parsed.runs_on(here.parsed_generation):
        return None
    flops_per_s, bytes_per_s = _measured()
    times = _TIMES | (_AMX_TIMES if parsed.isa == "amx" else {})
    known = [each for each in Precision if not missing_instructions(parsed, each)]
    by_precision = {each: flops_per_s * times.get(each, 1.0) for each in known}
    return DevicePeak(by_precision, bytes_per_s, "measured here")


def _measured() -> tuple[float, float]:
    """FLOP/s in fp32 of all cores of this process, and bytes/s of one: few reach more together."""
    import numpy as np

    matrices = np.ones((_STACK, _SIDE, _SIDE), np.float32)
    products = np.empty_like(matrices)
    source = np.ones(_COPIED_BYTES, np.uint8)
    target = np.empty_like(source)
    product_s = _best_s(lambda: np.matmul(matrices, matrices, out=products), 10)
    copy_s = _best_s(lambda: np.copyto(target, source), 2)
    num_cores = len(os.sched_getaffinity(0))
    return num_cores * 2 * _STACK * _SIDE**3 / product_s, 2 * _COPIED_BYTES / copy_s


def _best_s(call: Callable[[], object], num_tries: int) -> float:
    """Seconds of this thread alone, whatever else runs here."""
    best_s = inf
    for _ in range(num_tries):
        started_s = time.thread_time()
        call()
        best_s = min(best_s, time.thread_time() - started_s)
    return best_s


def _values(
    model: onnx.ModelProto, sizes: Mapping[str, int]
) -> tuple[dict[str, Shape], dict[str, int]]:
    """Shapes that are known at these sizes, and bytes of an element, by name."""
    import onnx

    sized = onnx.ModelProto()
    sized.CopyFrom(model)
    # Shapes of the export name dimensions: here all are numbers.
    del sized.graph.value_info[:]
    for value in sized.graph.output:
        value.type.tensor_type.ClearField("shape")
    for dim in (d for value in sized.graph.input for d in value.type.tensor_type.shape.dim):
        if dim.dim_param in sizes:
            dim.dim_value = sizes[dim.dim_param]
    found = onnx.shape_inference.infer_shapes(sized, data_prop=True).graph
    shapes = {each.name: tuple(each.dims) for each in found.initializer}
    types = {each.name: each.data_type for each in found.initializer}
    for value in (*found.value_info, *found.input, *found.output):
        tensor = value.type.tensor_type
        types[value.name] = tensor.elem_type
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            shapes[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return shapes, {name: _width(each) for name, each in types.items()}


@cache
def _width(elem_type: int) -> int:
    import onnx

    is_sized = elem_type not in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)
    return onnx.helper.tensor_dtype_to_np_dtype(elem_type).itemsize if is_sized else 0


def published_peak(generation: str, name: str) -> tuple[str, dict[Precision, float], float] | None:
    """A card's name, FLOP/s by precision and bytes/s; None of a generation that is not here."""
    cards = [line.split() for line in _CARDS.split("\n") if line.startswith(f"{generation} ")]
    named = [card for card in cards if card[1].replace("_", " ") in name.replace("_", " ")]
    card = max(named, key=lambda each: len(each[1])) if named else next(iter(cards), None)
    if card is None:
        return None
    figures = [float(figure) for figure in card[2:]]
    flops = {p: 1e12 * each for p, each in zip(_PRECISIONS, figures, strict=False) if each}
    # These are computed with in fp32.
    flops[Precision.INT8_WEIGHT_ONLY] = flops[Precision.FP32]
    return card[1].replace("_", " "), flops, 1e9 * figures[-1]
