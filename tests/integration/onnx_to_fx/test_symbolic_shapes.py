"""Shape arithmetic that is hard to keep symbolic: each graph exports and compiles as one."""

from __future__ import annotations

import warnings

import numpy as np
import onnxruntime
import pytest
import torch
from torch.export import Dim

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from tests.unit.compiler_worker.onnx_to_fx.graphs import model

# What is tested, and the nodes from x [N, 4, T] to y.
GRAPHS = {
    "expand both ways": "s = Shape <start = 2> (x) y = Expand (rows, s)",
    "expand to a symbol of another axis": "s = Shape (x) y = Expand (x, s)",
    "range over the sequence": """s = Shape <start = 2> (x) t = Squeeze (s) r = Range (zero, t, one)
        f = Cast <to = 1> (r) y = Add (x, f)""",
    "flatten and back": """s = Shape (x) f = Flatten <axis = 2> (x) h = Relu (f)
        y = Reshape (h, s)""",
    "slice to half the sequence": """s = Shape <start = 2> (x) h = Div (s, two)
        z = Slice (x, z1, h, a2) y = Exp (z)""",
    "backwards": "y = Slice (x, m1, lowest, a2, m1)",
    "split in halves": "p, q = Split <axis = 2, num_outputs = 2> (x) y = Concat <axis = 2> (q, p)",
    "pad by a computed amount": """s = Shape <start = 2> (x) h = Mod (s, two)
        p = Concat <axis = 0> (z1, z1, z1, z1, z1, h) y = Pad (x, p)""",
    "reflect": 'y = Pad <mode = "reflect"> (x, pads)',
    "same padding": """y = Conv <auto_pad = "SAME_UPPER", strides = [2], kernel_shape = [3]>
        (x, kernel)""",
    "twice as long": 'y = Resize <mode = "linear"> (x, , scales)',
    "two thirds as long": """s = Shape (x) a = Slice (s, z1, two, z1) t = Slice (s, two, three, z1)
        d = Mul (t, two) h = Div (d, three) n = Concat <axis = 0> (a, h)
        y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
                    nearest_mode = "floor"> (x, , , n)""",
    "running sum": "y = CumSum <exclusive = 1> (x, a2s)",
    "one-hot of the sequence": """s = Shape <start = 2> (x) t = Squeeze (s)
        i = ArgMax <axis = 2, keepdims = 0> (x) y = OneHot (i, t, values)""",
    "upper triangle": "t = Transpose <perm = [0, 2, 1]> (x) m = MatMul (t, x) y = Trilu (m)",
    "the number of elements": "n = Size (x) f = Cast <to = 1> (n) y = Div (x, f)",
}
CONSTANTS = {
    "rows": np.arange(4, dtype=np.float32).reshape(1, 4, 1),
    "zero": np.int64(0),
    "one": np.int64(1),
    "two": np.array([2]),
    "three": np.array([3]),
    "z1": np.array([0]),
    "a2": np.array([2]),
    "a2s": np.int64(2),
    "m1": np.array([-1]),
    "lowest": np.array([np.iinfo(np.int64).min]),
    "pads": np.array([0, 0, 2, 0, 0, 3]),
    "kernel": np.random.default_rng(1).standard_normal((5, 4, 3), dtype=np.float32),
    "scales": np.array([1, 1, 2], np.float32),
    "values": np.array([0, 1], np.float32),
}
SHAPES = ((1, 4, 6), (2, 4, 9), (5, 4, 16))


@pytest.mark.parametrize("nodes", GRAPHS.values(), ids=GRAPHS.keys())
def test_one_graph_serves_every_shape(nodes: str) -> None:
    built = model(f"g (float[N, 4, T] x) => (float y) {{ {nodes} }}", **CONSTANTS)
    session = onnxruntime.InferenceSession(built.SerializeToString())
    module = graph_module_from_onnx(built)
    torch.compiler.reset()
    with warnings.catch_warnings():
        # torch's own deprecations inside export are not ours to mend.
        warnings.simplefilter("ignore")
        dims = ({0: Dim.AUTO, 2: Dim.AUTO},)
        program = torch.export.export(module, (torch.randn(3, 4, 12),), dynamic_shapes=dims)
        compiled = torch.compile(module, fullgraph=True, backend="eager", dynamic=True)
        for shape in SHAPES:
            x = torch.randn(shape)
            (want,) = session.run(["y"], {"x": x.numpy()})
            for runner in (module, compiled, program.module()):
                (got,) = runner(x)
                np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)
