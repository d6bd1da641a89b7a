"""The most that this CPU's matrix units give, by type: what bounds any engine's speed-up.

    python -m tests.benchmarks.cpu.ceiling

One square product of constants, large enough to be bound by arithmetic, compiled by OpenVINO
with two threads in each type, one after the other in turn; the best of all rounds counts.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from compiler_worker.precision.quantised import quantised_model
from services.contracts.hardware.kinds import Precision
from services.engines.device.device_probe import probe_device
from services.engines.openvino_engine import compile_for_cpu

SIZE = 2048
_NUM_THREADS, _NUM_ROUNDS = 2, 20


def main() -> int:
    """Measure and print."""
    model = _product()
    x = np.random.default_rng(1).standard_normal((SIZE, SIZE)).astype(np.float32)
    rounded = quantised_model(model, Precision.INT8, [{"x": x}])
    best = _best({"f32": (model, "f32"), "bf16": (model, "bf16"), "int8": (rounded, "f32")}, x)
    print(f"{probe_device().generation}, {_NUM_THREADS} threads, product of {SIZE} cubed")
    for name, seconds in best.items():
        print(f"{name:5} {2 * SIZE**3 / seconds / 1e9:6.0f} G operations per second")
    return 0


def _product() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((SIZE, SIZE)).astype(np.float32), "w")
    shape = [SIZE, SIZE]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _best(variants: dict[str, tuple[onnx.ModelProto, str]], x: np.ndarray) -> dict[str, float]:
    """Least seconds of one product, by variant: a model and the hint for its floats."""
    with tempfile.TemporaryDirectory() as folder:
        requests = {}
        for name, (model, hint) in variants.items():
            path = Path(folder) / f"{name}.onnx"
            onnx.save(model, path)
            requests[name] = compile_for_cpu(path, hint, _NUM_THREADS).create_infer_request()
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(_NUM_ROUNDS):
        for name, request in requests.items():
            started = time.perf_counter()
            request.infer({0: x}, share_inputs=True)
            best[name] = min(best[name], time.perf_counter() - started)
    return best


if __name__ == "__main__":
    sys.exit(main())
