"""Older meanings of ops whose attributes became inputs or whose semantics changed.

The node tests of ONNX use the newest versions; ONNX Runtime is the reference here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import onnxruntime
import pytest
import torch
from _pytest.mark.structures import ParameterSet

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from tests.unit.compiler_worker.onnx_to_fx.graphs import model

# Oldest opset of the range, newest one, what is tested, and the nodes from x to y.
CASES = """
7 12 softmax over all later axes: y = Softmax <axis = 1> (x)
7 12 softmax with the old default axis: y = Softmax (x)
13 17 softmax of one axis: y = Softmax <axis = 1> (x)
7 12 log softmax over all later axes: y = LogSoftmax <axis = 2> (x)
11 12 unsqueeze by negative attribute: y = Unsqueeze <axes = [-1]> (x)
10 12 slice by inputs: y = Slice (x, starts, ends, axes)
10 17 slice backwards: y = Slice (x, ends, starts, axes, back)
10 17 slice backwards through the front: y = Slice (x, minus, lowest, axis1, back1)
7 12 sum by attribute: y = ReduceSum <axes = [1], keepdims = 0> (x)
7 17 mean by attribute: y = ReduceMean <axes = [-1, 1]> (x)
7 17 max of everything: y = ReduceMax <keepdims = 0> (x)
7 17 log of summed exponentials: y = ReduceLogSumExp <axes = [2]> (x)
7 10 clip by attributes: y = Clip <min = -0.5, max = 0.25> (x)
7 10 clip without bounds: y = Clip (x)
11 17 clip by inputs: y = Clip (x, low, high)
11 17 clip above only: y = Clip (x, , high)
7 10 pad by attributes: y = Pad <pads = [0, 1, 2, 0, 0, 1], value = 0.5> (x)
7 10 pad by reflection: y = Pad <mode = "reflect", pads = [0, 1, 2, 0, 2, 1]> (x)
11 17 pad by edges: y = Pad <mode = "edge"> (x, pads)
7 12 split by attribute: y, r = Split <axis = 2, split = [2, 4]> (x)
7 17 split in equal parts: y, r = Split <axis = 2> (x)
7 9 top k by attribute: y, i = TopK <k = 2, axis = 1> (x)
11 17 smallest k: y, i = TopK <axis = 1, largest = 0> (x, k)
7 11 dropout: y = Dropout <ratio = 0.3> (x)
12 17 dropout by inputs: y = Dropout (x, high)
7 17 first maximum: h = ArgMax <axis = 2> (x) y = Cast <to = 1> (h)
7 17 flatten: y = Flatten <axis = 2> (x)
12 17 power with an integer exponent: y = Pow (x, two)
11 17 running sum from the back: y = CumSum <reverse = 1, exclusive = 1> (x, axis1_0)
10 10 resize at opset 10: h = Unsqueeze <axes = [0]> (x) y = Resize (h, scales)
11 17 gather with negative indices: y = Gather <axis = 1> (x, minus)
7 12 squeeze by attribute: h = Unsqueeze <axes = [0, 2]> (x) y = Squeeze <axes = [2]> (h)
7 9 slice by attributes: y = Slice <axes = [1, 2], starts = [1, -5], ends = [9, -1]> (x)
12 17 last maximum: h = ArgMax <axis = 1, select_last_index = 1> (x) y = Cast <to = 1> (h)
7 17 integer division: i = Cast <to = 6> (tens) d = Div (i, seven) y = Cast <to = 1> (d)
10 17 integer remainder: i = Cast <to = 6> (tens) d = Mod (i, seven) y = Cast <to = 1> (d)
9 9 upsample: h = Unsqueeze <axes = [0]> (x) y = Upsample <mode = "nearest"> (h, scales)
9 17 one-hot: i = ArgMax <axis = 2, keepdims = 0> (x) y = OneHot <axis = 1> (i, depth, values)
11 17 scatter by elements: y = ScatterElements <axis = 1> (x, places, updates)
15 17 shape of a part: s = Shape <start = -2> (x) y = Cast <to = 1> (s)
"""
CONSTANTS = {
    "starts": np.array([1, 0]),
    "ends": np.array([3, 5]),
    "axes": np.array([1, 2]),
    "axis1": np.array([1]),
    "axis1_0": np.array(1, np.int64),
    "back": np.array([-1, -2]),
    "back1": np.array([-1]),
    "minus": np.array([-1]),
    "lowest": np.array([np.iinfo(np.int64).min]),
    "low": np.float32(-0.5),
    "high": np.float32(0.25),
    "pads": np.array([0, 1, 2, 0, 2, 1]),
    "k": np.array([2]),
    "seven": np.array(7, np.int32),
    "two": np.array(2, np.int64),
    "scales": np.array([1, 1, 2, 3], np.float32),
    "depth": np.array(6),
    "values": np.array([-1, 2], np.float32),
    "places": np.array([[[0, -1, 2, 1, 0, 3]]]),
    "updates": np.arange(6, dtype=np.float32).reshape(1, 1, 6),
}


def rows() -> Iterator[ParameterSet]:
    """Each case at both ends of its range of opsets."""
    for line in CASES.strip().splitlines():
        head, nodes = line.split(": ", 1)
        oldest, newest, name = head.split(" ", 2)
        for opset in sorted({int(oldest), int(newest)}):
            yield pytest.param(opset, nodes, id=f"{name}-{opset}")


@pytest.mark.parametrize(("opset", "nodes"), list(rows()))
def test_equals_onnxruntime(opset: int, nodes: str) -> None:
    rng = np.random.default_rng(0)
    # Rounding to halves makes ties, which some ops must break in one way.
    x_NCW = np.round(rng.standard_normal((3, 4, 6)) * 4).astype(np.float32) / 2
    tens = np.trunc(x_NCW * 10)
    words = set(re.findall(r"\w+", nodes))
    used = {name: value for name, value in CONSTANTS.items() if name in words}
    inputs = "float[N, C, W] x, float[N, C, W] tens"
    text = f"g ({inputs}) => (float y) {{ {nodes} unused = Add(x, tens) }}"
    built = model(text, opset=opset, **used)
    built.ir_version = 8
    session = onnxruntime.InferenceSession(built.SerializeToString())
    (want,) = session.run(["y"], {"x": x_NCW, "tens": tens})
    (got,) = graph_module_from_onnx(built)(torch.from_numpy(x_NCW), torch.from_numpy(tens))
    assert tuple(got.shape) == want.shape
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)
