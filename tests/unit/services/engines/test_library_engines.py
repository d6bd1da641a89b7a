"""What is special about the engines that compile at load."""

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from services.contracts.errors import EngineError
from services.contracts.hardware.facts import Platform
from services.contracts.hardware.kinds import EngineKind
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE
from services.contracts.model.manifest import BlobRef
from services.engines.base import LoadSpec
from services.engines.device.device_probe import probe_device
from services.engines.device.toolchain import installed_version
from services.engines.loader import engine_class
from services.engines.onnxruntime_engine import (
    TYPED_MODEL,
    OnnxruntimeEngine,
    open_session,
    provider_of,
    require_provider,
)
from services.engines.openvino_engine import compile_for_cpu
from tests.conformance.tiny_model import draw_inputs, save_master, tiny_model
from tests.unit.services.engines.test_compatibility import spec_for

V3 = "cpu-x86_64-v3"


def real_spec(folder: Path, kind: EngineKind) -> LoadSpec:
    wanted = {kind.value: installed_version(kind.value)}
    spec = spec_for(V3, V3, wanted=wanted, found=wanted, kind=kind)
    path = save_master(tiny_model(), folder)
    return replace(spec, directory=folder, master_path=path, num_threads=1)


def test_the_precision_hint_is_in_force(tmp_path: Path) -> None:
    """Without it a processor with bf16 would compute an fp32 engine in bf16."""
    path = save_master(tiny_model(), tmp_path)
    model = compile_for_cpu(path, "f32", num_threads=1)
    assert model.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"
    assert model.get_property("INFERENCE_NUM_THREADS") == 1


def test_processors_are_shared_with_other_replicas(tmp_path: Path) -> None:
    """No thread spins while it waits, and none is bound to a processor."""
    path = save_master(tiny_model(), tmp_path)
    options = open_session(str(path), Platform.CPU).get_session_options()
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert compile_for_cpu(path, "f32").get_property("ENABLE_CPU_PINNING") is False


@pytest.mark.parametrize("kind", [EngineKind.ONNXRUNTIME, EngineKind.OPENVINO])
def test_a_master_that_cannot_be_read_is_an_engine_error(tmp_path: Path, kind: EngineKind) -> None:
    spec = real_spec(tmp_path, kind)
    spec.master_path.write_bytes(b"not a model")
    with pytest.raises(EngineError, match="failed to load model.onnx"):
        engine_class(kind).load(spec)


@pytest.mark.parametrize("kind", [EngineKind.ONNXRUNTIME, EngineKind.OPENVINO])
def test_bfloat16_goes_in_and_comes_out(tmp_path: Path, kind: EngineKind) -> None:
    spec = real_spec(tmp_path, kind)
    graph = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]>
        doubled (bfloat16[n, 2] x, float[n, 2] z) => (bfloat16[n, 2] y, float[n, 2] w) {
            f = Cast<to=1>(x)  sum = Add(f, z)  y = Cast<to=16>(sum)  w = Add(sum, sum)
        }"""
    )
    onnx.save(graph, spec.master_path)
    types = {"x": "BF16", "z": "FP32", "y": "BF16", "w": "FP32"}
    known = {n: TensorSpec(name=n, datatype=t, shape=("n", 2)) for n, t in types.items()}
    manifest = spec.manifest.model_copy(
        update={"inputs": (known["x"], known["z"]), "outputs": (known["y"], known["w"])}
    )
    x = np.array([[1.5, -2.0], [0.25, 3.0]], NUMPY_FROM_DATATYPE["BF16"])[::-1]
    z = np.ones((2, 2), np.float32)
    found = engine_class(kind).load(replace(spec, manifest=manifest)).run({"x": x, "z": z})
    assert found["y"].astype(np.float32).tolist() == [[1.25, 4.0], [2.5, -1.0]]
    assert found["w"].tolist() == [[2.5, 8.0], [5.0, -2.0]]


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("kind", [EngineKind.ONNXRUNTIME, EngineKind.OPENVINO])
def test_a_run_that_fails_says_so_and_lets_its_inputs_go(
    tmp_path: Path, kind: EngineKind, num_threads: int
) -> None:
    spec = real_spec(tmp_path, kind)
    graph = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]>
        side_by_side (float[n, k] x, float[m, p] z) => (float[n, q] y) {
            y = Concat<axis=1>(x, z)
        }"""
    )
    onnx.save(graph, spec.master_path)
    manifest = spec.manifest.model_copy(
        update={
            "inputs": (
                TensorSpec(name="x", datatype="FP32", shape=("n", "k")),
                TensorSpec(name="z", datatype="FP32", shape=("m", "p")),
            ),
            "outputs": (TensorSpec(name="y", datatype="FP32", shape=("n", "q")),),
        }
    )
    engine = engine_class(kind).load(replace(spec, manifest=manifest, num_threads=num_threads))
    three = np.ones((1, 3), np.float32)
    assert engine.run({"x": three, "z": three})["y"].shape == (1, 6)
    is_there = weakref.ref(three)
    with pytest.raises(EngineError, match="failed to run"):
        engine.run({"x": three, "z": np.ones((2, 2), np.float32)})
    del three
    gc.collect()
    assert is_there() is None


@pytest.mark.parametrize("kind", [EngineKind.ONNXRUNTIME, EngineKind.OPENVINO])
def test_a_scalar_beside_bfloat16_stays_one(tmp_path: Path, kind: EngineKind) -> None:
    spec = real_spec(tmp_path, kind)
    graph = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]>
        scaled (bfloat16[n] x, float s) => (bfloat16[n] y, float t) {
            f = Cast<to=1>(x)  scaled = Mul(f, s)  y = Cast<to=16>(scaled)  t = Add(s, s)
        }"""
    )
    # The parser knows no scalar.
    for scalar in (graph.graph.input[1], graph.graph.output[1]):
        scalar.type.tensor_type.shape.SetInParent()
    onnx.save(graph, spec.master_path)
    shapes = {"x": ("n",), "y": ("n",), "s": (), "t": ()}
    known = {
        n: TensorSpec(name=n, datatype="BF16" if shape else "FP32", shape=shape)
        for n, shape in shapes.items()
    }
    manifest = spec.manifest.model_copy(
        update={"inputs": (known["x"], known["s"]), "outputs": (known["y"], known["t"])}
    )
    x = np.array([1.5, -2.0], NUMPY_FROM_DATATYPE["BF16"])
    found = (
        engine_class(kind)
        .load(replace(spec, manifest=manifest))
        .run({"x": x, "s": np.array(2.0, np.float32)})
    )
    assert found["y"].astype(np.float32).tolist() == [3.0, -4.0]
    assert (found["t"].shape, found["t"].tolist()) == ((), 4.0)


def test_a_published_typed_model_is_run_in_place_of_the_master(tmp_path: Path) -> None:
    spec = real_spec(tmp_path, EngineKind.ONNXRUNTIME)
    other = tmp_path / "other"
    other.mkdir()
    onnx.save(tiny_model(seed=8), other / TYPED_MODEL)
    manifest = spec.manifest.model_copy(
        update={"files": {TYPED_MODEL: BlobRef(sha256="c" * 64, num_bytes=1)}}
    )
    inputs = draw_inputs(2, 3)
    own = OnnxruntimeEngine.load(replace(spec, manifest=manifest, directory=other)).run(inputs)
    masters = OnnxruntimeEngine.load(spec).run(inputs)
    assert (own["pooled"] != masters["pooled"]).any()


def test_sums_of_bytes_do_not_saturate_before_vnni(tmp_path: Path) -> None:
    """Two products of 255 and 127 are more than sixteen bits hold; only such a host can fail."""
    graph = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 19]>
        g (float[1, 64] x) => (float[1, 8] y) <float one = {1.0}, uint8 z = {0}, int8 s = {0}> {
            q = QuantizeLinear(x, one, z)
            left = DequantizeLinear(q, one, z)
            right = DequantizeLinear(w, one, s)
            product = MatMul(left, right)
            y = Identity(product)
        }"""
    )
    weights = onnx.numpy_helper.from_array(np.full((64, 8), 127, np.int8), "w")
    graph.graph.initializer.append(weights)
    path = tmp_path / TYPED_MODEL
    onnx.save(graph, path)
    session = open_session(str(path), Platform.CPU)
    (found,) = session.run(None, {"x": np.full((1, 64), 255, np.float32)})
    np.testing.assert_array_equal(found, np.full((1, 8), 64 * 255 * 127, np.float32))


def test_a_provider_that_is_not_installed_is_an_error_not_a_silent_cpu() -> None:
    assert provider_of(Platform.CPU) == "CPUExecutionProvider"
    if probe_device().parsed_generation.platform is Platform.CPU:
        with pytest.raises(RuntimeError, match="CUDAExecutionProvider wanted, this build has"):
            provider_of(Platform.CUDA)


def test_a_session_that_fell_back_to_the_cpu_is_refused(tmp_path: Path) -> None:
    spec = real_spec(tmp_path, EngineKind.ONNXRUNTIME)
    session = open_session(str(spec.master_path), Platform.CPU)
    require_provider(session, "CPUExecutionProvider")
    with pytest.raises(RuntimeError, match="runs on CPUExecutionProvider; wanted CUDAExec"):
        require_provider(session, "CUDAExecutionProvider")
