"""fp32 on a GPU is fp32: cuDNN would compute convolutions in TF32, with ten bits of mantissa.

B = batch, C = channels, S = side of a square image.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from compiler_worker.builders.base import BuildSpec
from compiler_worker.builders.exported_program import export_program
from compiler_worker.builders.inductor_builder import InductorBuilder
from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, DimRange
from services.engines.base import LoadSpec
from services.engines.fallback.fallback_engine import FallbackEngine, FallbackSpec
from services.engines.inductor.inductor_engine import InductorEngine
from tests.conformance.workshop import AnyEngine, manifest_of

# TF32 gives about 3e-4 here, fp32 about 1e-6.
MAX_REL_L2 = 2e-5
NUM_CHANNELS, SIDE = 64, 24
BUCKETS = (Bucket(dims={"batch": DimRange(min=1, opt=2, max=4)}),)
_IMAGE = ("batch", NUM_CHANNELS, SIDE, SIDE)
_GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
conv (float[batch, 64, 24, 24] image) => (float[batch, 64, 24, 24] filtered)
{ filtered = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, kernel) }
"""


def weights() -> Array:
    """kernel_CCKK: float32 [64, 64, 3, 3]."""
    rng = np.random.default_rng(3)
    shape = (NUM_CHANNELS, NUM_CHANNELS, 3, 3)
    return (rng.standard_normal(shape) / 24).astype(np.float32)


def write_master(folder: Path) -> Path:
    model: onnx.ModelProto = parser.parse_model(_GRAPH)
    model.graph.initializer.append(numpy_helper.from_array(weights(), "kernel"))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def record() -> MasterRecord:
    return MasterRecord(
        digest="c" * 64,
        files={},
        inputs=(TensorSpec(name="image", datatype="FP32", shape=_IMAGE),),
        outputs=(TensorSpec(name="filtered", datatype="FP32", shape=_IMAGE),),
        opset=20,
        num_parameters=weights().size,
    )


def inductor(folder: Path, device: DeviceFacts) -> AnyEngine:
    builder, workspace = InductorBuilder(), folder / "workspace"
    workspace.mkdir()
    generation = device.parsed_generation
    key = BuildKey(
        master_digest=record().digest,
        kind=EngineKind.INDUCTOR,
        precision=Precision.FP32,
        buckets=BUCKETS,
        builder_options=builder.options(generation, Precision.FP32),
        generation=device.generation,
        toolchain=builder.toolchain(generation),
    )
    path = write_master(folder)
    plan = BuildSpec(key=key, master=record(), master_path=path)
    output = builder.build(plan, workspace, print)
    return InductorEngine.load(
        LoadSpec(
            manifest=manifest_of(plan, output),
            master=record(),
            directory=workspace,
            master_path=path,
            device=device,
        )
    )


def fallback(folder: Path, device: DeviceFacts) -> AnyEngine:
    program = folder / "program.pt2"
    export_program(write_master(folder), BUCKETS, program)
    return FallbackEngine.load(
        FallbackSpec(program_path=program, master=record(), buckets=BUCKETS, device=device)
    )


def in_float64(image: Array) -> Array:
    import torch

    tensors = [torch.from_numpy(array).double() for array in (image, weights())]
    answer: Array = torch.nn.functional.conv2d(*tensors, padding=1).numpy()
    return answer


@pytest.mark.parametrize("make", [inductor, fallback])
def test_a_convolution_keeps_all_bits(tmp_path: Path, device: DeviceFacts, make: object) -> None:
    import torch

    # What a process starts with: whoever ran before may have changed it.
    torch.backends.cudnn.allow_tf32 = True
    assert callable(make)
    engine = make(tmp_path, device)
    image = np.random.default_rng(4).standard_normal((3, *_IMAGE[1:])).astype(np.float32)
    found, wanted = engine.run({"image": image})["filtered"], in_float64(image)
    engine.close()
    distance = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert distance <= MAX_REL_L2
