"""What a run has to do at given sizes, and how fast a device could do it: the roofline.

A run takes at least as long as its products take at the peak rate, and as what has to be moved
takes at the memory's. What is moved is counted as compilers leave it at best: products,
convolutions, attention and recurrences read their inputs and write their outputs once, all else is
fused into them.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

from services.cli.advise.gpu_peaks import published_peak
from services.cli.advise.op_flops import Shape, is_product, op_flops
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.instructions import missing_instructions
from services.contracts.hardware.kinds import Precision

if TYPE_CHECKING:
    import onnx

# Bytes of a number of a product, of 4 in fp32.
_SHARE: Final = {
    Precision.FP32: 1.0,
    Precision.FP16: 0.5,
    Precision.BF16: 0.5,
    Precision.INT8: 0.25,
    Precision.FP8: 0.25,
    Precision.INT8_WEIGHT_ONLY: 1.0,
}
# Numbers that one instruction of a CPU multiplies, as many times those of fp32 by vendors' manuals:
# VNNI 4, AVX512_BF16 2; tiles of AMX sixteen times as many bytes as a vector of AVX-512.
_CPU_TIMES: Final = {Precision.BF16: 2.0, Precision.INT8: 4.0}
_AMX_TIMES: Final = {Precision.BF16: 16.0, Precision.INT8: 32.0}
# Products that numpy's library leaves to one thread, whose own time other load hardly changes.
_SIDE = 64
_STACK = 64
_COPIED_BYTES = 2**26
_NUM_PRODUCTS = 10
_NUM_COPIES = 2


@dataclass(frozen=True, kw_only=True)
class BucketWork:
    """What one run has to do.

    Attributes:
        flops: of products, convolutions, attention and recurrences.
        num_bytes: that have to be moved in fp32.
        num_products: ops that were counted.
        not_counted: by name of the op, how many have no formula or no known shape.
    """

    flops: float
    num_bytes: float
    num_products: int
    not_counted: Mapping[str, int] = field(default_factory=dict)

    @property
    def intensity(self) -> float:
        """FLOPs for each byte; 0 where nothing is moved."""
        return self.flops / self.num_bytes if self.num_bytes else 0.0


@dataclass(frozen=True, kw_only=True)
class DevicePeak:
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
        flops_per_s = self.flops_per_s.get(precision)
        if flops_per_s is None:
            return None
        moved_s = work.num_bytes * _SHARE[precision] / self.bytes_per_s
        return max(work.flops / flops_per_s, moved_s)

    def ridge(self, precision: Precision) -> float:
        """FLOPs for each byte, above which products are the limit and not the memory."""
        return self.flops_per_s.get(precision, 0.0) / self.bytes_per_s


def bucket_work(model: onnx.ModelProto, sizes: Mapping[str, int]) -> BucketWork:
    """Count a run's FLOPs and bytes; the model needs no weights.

    Args:
        model: a master; its external data may be left out.
        sizes: of its dynamic dimensions.
    """
    shapes, widths = _values(model, sizes)
    weights = {each.name for each in model.graph.initializer}
    ends = {value.name for value in (*model.graph.input, *model.graph.output)} - weights
    moved = sum(_num_bytes(name, shapes, widths) for name in ends)
    flops = 0.0
    num_products = 0
    not_counted = Counter[str]()
    for node in model.graph.node:
        if is_product(node):
            found = op_flops(node, shapes)
            if found is None:
                not_counted[node.op_type] += 1
                continue
            flops += found
            num_products += 1
            moved += sum(_num_bytes(name, shapes, widths) for name in (*node.input, *node.output))
        elif node.op_type == "Gather" and node.input[0] in weights:
            # As many rows of the table are read as are written.
            moved += 2 * _num_bytes(node.output[0], shapes, widths)
        elif node.domain not in ("", "ai.onnx") or any(_has_graph(each) for each in node.attribute):
            not_counted[node.op_type] += 1
    return BucketWork(
        flops=flops, num_bytes=moved, num_products=num_products, not_counted=dict(not_counted)
    )


def device_peak(generation: str, device_name: str = "") -> DevicePeak | None:
    """The peak of a device; None where it is neither published nor this host's processor.

    Args:
        generation: as devices name theirs.
        device_name: as the driver gives it; without one the first card of the generation.
    """
    if Generation.parse(generation).platform is Platform.CPU:
        return _host_peak(generation, device_name)
    card = published_peak(generation, device_name)
    if card is None:
        return None
    return DevicePeak(
        flops_per_s=card.flops_per_s,
        bytes_per_s=card.gb_per_s * 1e9,
        source=f"published for {card.name}",
    )


@cache
def _host_peak(generation: str, device_name: str) -> DevicePeak | None:
    """By a product and a copy here, if this host is such a device."""
    from services.engines.device.device_probe import probe_device

    here = probe_device(Platform.CPU)
    parsed = Generation.parse(generation)
    if device_name not in ("", here.name) or not parsed.runs_on(here.parsed_generation):
        return None
    flops_per_s, bytes_per_s = _measured()
    times = _CPU_TIMES | (_AMX_TIMES if parsed.isa == "amx" else {})
    return DevicePeak(
        flops_per_s={
            precision: flops_per_s * times.get(precision, 1.0)
            for precision in Precision
            if not missing_instructions(parsed, precision)
        },
        bytes_per_s=bytes_per_s,
        source="measured here by products and copies; other precisions by their instructions",
    )


def _measured() -> tuple[float, float]:
    """FLOP/s in fp32 of all cores of this process, and bytes/s of one: few reach more together."""
    import numpy as np

    matrices = np.ones((_STACK, _SIDE, _SIDE), np.float32)
    products = np.empty_like(matrices)
    source = np.ones(_COPIED_BYTES, np.uint8)
    target = np.empty_like(source)
    product_s = _best_s(lambda: np.matmul(matrices, matrices, out=products), _NUM_PRODUCTS)
    copy_s = _best_s(lambda: np.copyto(target, source), _NUM_COPIES)
    num_cores = len(os.sched_getaffinity(0))
    return num_cores * 2 * _STACK * _SIDE**3 / product_s, 2 * _COPIED_BYTES / copy_s


def _best_s(call: Callable[[], object], num_tries: int) -> float:
    """Seconds of this thread alone, whatever else runs here."""
    best_s = math.inf
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
    for value in sized.graph.input:
        for dim in value.type.tensor_type.shape.dim:
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


def _num_bytes(name: str, shapes: Mapping[str, Shape], widths: Mapping[str, int]) -> int:
    return math.prod(shapes[name]) * widths.get(name, 0) if name in shapes else 0


def _has_graph(attribute: onnx.AttributeProto) -> bool:
    return attribute.HasField("g") or bool(attribute.graphs)
