"""TensorRT-RTX builds for real on a CPU; refusals keep the builder's words."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from compiler_worker.builders import tensorrt_api
from compiler_worker.builders.base import BuildSpec
from compiler_worker.builders.tensorrt_builder import TensorrtBuilder
from services.contracts.errors import BuildError, BuildUnavailableError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.recipe import Bucket, DimRange
from services.engines.device.toolchain import installed_version
from services.engines.tensorrt_engine import PLAN
from services.engines.tensorrt_runtime import Messages
from tests.conformance.tiny_model import save_master
from tests.unit.compiler_worker.builders.conftest import PlanMaker

pytestmark = pytest.mark.skipif(
    not installed_version("tensorrt_rtx"), reason="needs the extra rtx: pip install smelt[rtx]"
)
AHEAD_OF_TIME = ["cuda-sm80", "cuda-sm86", "cuda-sm89", "cuda-sm120", "cuda-sm121"]


@pytest.mark.parametrize("generation", AHEAD_OF_TIME)
def test_a_plan_is_built_for_each_generation(
    make_plan: PlanMaker, workspace: Path, generation: str
) -> None:
    said: list[str] = []
    plan = make_plan(EngineKind.TENSORRT, generation)
    output = TensorrtBuilder().build(plan, workspace, said.append)
    assert list(output.files) == [PLAN]
    assert output.files[PLAN].stat().st_size > 10_000
    assert not output.needs_master
    assert any(generation in line for line in said)
    # The parser warns about integer inputs: kept word for word, once each.
    assert any("Int64 binding" in finding for finding in output.findings)
    assert len(set(output.findings)) == len(output.findings)


def test_fp16_is_built_from_the_typed_graph(make_plan: PlanMaker, workspace: Path) -> None:
    plan = make_plan(EngineKind.TENSORRT, "cuda-sm89", precision=Precision.FP16)
    output = TensorrtBuilder().build(plan, workspace, print)
    assert output.files[PLAN].stat().st_size > 10_000
    assert (workspace / "typed.onnx").exists()


def test_sm75_refuses_fp32_in_the_builders_own_words(make_plan: PlanMaker, workspace: Path) -> None:
    plan = make_plan(EngineKind.TENSORRT, "cuda-sm75")
    with pytest.raises(
        BuildError, match="refused to build for cuda-sm75: .*FP32 GEMM is not supported"
    ) as caught:
        TensorrtBuilder().build(plan, workspace, print)
    assert not isinstance(caught.value, BuildUnavailableError)
    assert any("FP32 GEMM is not supported" in line for line in caught.value.log_tail)
    assert not (workspace / PLAN).exists()


def test_one_builds_messages_are_not_the_next_ones(make_plan: PlanMaker, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    with pytest.raises(BuildError):
        TensorrtBuilder().build(make_plan(EngineKind.TENSORRT, "cuda-sm75"), folders[0], print)
    good = make_plan(EngineKind.TENSORRT, "cuda-sm89")
    findings = TensorrtBuilder().build(good, folders[1], print).findings
    assert not any("GEMM" in finding or "logger" in finding for finding in findings)


_ATTENTION = """
<ir_version: 10, opset_import: ["" : 23]>
attend (float[batch, 4, sequence, 8] x) => (float[batch, 4, sequence, 8] y)
{ scaled = Mul (x, half)
  y = Attention <softcap = 5.0> (scaled, scaled, scaled) }
"""


@pytest.fixture
def attention_plan(make_plan: PlanMaker, tmp_path: Path) -> Callable[[Precision], BuildSpec]:
    """Plans for an Attention with an attribute that TensorRT does not take."""
    model: onnx.ModelProto = parser.parse_model(_ATTENTION)
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5).reshape(()), "half"))
    folder = tmp_path / "attention"
    folder.mkdir()
    path = save_master(model, folder)
    spec = TensorSpec(name="x", datatype="FP32", shape=("batch", 4, "sequence", 8))

    def make(precision: Precision) -> BuildSpec:
        plan = make_plan(EngineKind.TENSORRT, "cuda-sm89", precision=precision, path=path)
        master = plan.master.model_copy(update={"inputs": (spec,)})
        return replace(plan, master=master)

    return make


def test_an_op_that_is_refused_is_lowered_and_the_refusal_is_a_finding(
    attention_plan: Callable[[Precision], BuildSpec], workspace: Path
) -> None:
    output = TensorrtBuilder().build(attention_plan(Precision.FP16), workspace, print)
    assert output.files[PLAN].exists()
    assert output.findings[0].startswith("built from a lowered graph, because: ")
    assert "Setting softcap is not supported in TensorRT Attention" in output.findings[0]


def test_attention_in_fp32_is_lowered_at_once(
    attention_plan: Callable[[Precision], BuildSpec], workspace: Path
) -> None:
    output = TensorrtBuilder().build(attention_plan(Precision.FP32), workspace, print)
    assert output.files[PLAN].exists()
    assert not any("lowered" in finding for finding in output.findings)


def test_a_graph_that_the_parser_refuses_is_a_build_error(
    make_plan: PlanMaker, tmp_path: Path, workspace: Path
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    plan = make_plan(EngineKind.TENSORRT, "cuda-sm89", path=broken)
    with pytest.raises(BuildError, match="tensorrt_rtx") as caught:
        TensorrtBuilder().build(plan, workspace, print)
    assert caught.value.log_tail


def test_a_bucket_without_a_dimension_is_refused(make_plan: PlanMaker, workspace: Path) -> None:
    bucket = Bucket(dims={"batch": DimRange(min=1, opt=1, max=2)})
    plan = make_plan(EngineKind.TENSORRT, "cuda-sm89", buckets=(bucket,))
    with pytest.raises(BuildError, match="dimension 'sequence'"):
        TensorrtBuilder().build(plan, workspace, print)


def test_a_generation_that_needs_its_device_is_unavailable(
    make_plan: PlanMaker, workspace: Path
) -> None:
    plan = make_plan(EngineKind.TENSORRT, "cuda-sm100")
    with pytest.raises(BuildUnavailableError, match="package tensorrt on such a device is needed"):
        TensorrtBuilder().build(plan, workspace, print)


@pytest.mark.parametrize(
    ("installed", "local", "generation", "reason"),
    [
        (["tensorrt", "tensorrt_rtx"], "cuda-sm90", "cuda-sm90", ""),
        (["tensorrt"], "cuda-sm90", "cuda-sm90", ""),
        (["tensorrt"], "cuda-sm90", "cuda-sm89", "the local device only, which is cuda-sm90"),
        (["tensorrt"], None, "cuda-sm89", "which is without a CUDA device"),
        (["tensorrt", "tensorrt_rtx"], "cuda-sm90", "cuda-sm89", ""),
        ([], None, "cuda-sm89", "neither of the Python packages"),
        (["tensorrt_rtx"], None, "cuda-sm90", "SM75, SM80"),
    ],
)
def test_which_library_can_build_what(
    monkeypatch: pytest.MonkeyPatch,
    installed: list[str],
    local: str | None,
    generation: str,
    reason: str,
) -> None:
    found = Generation.parse(local) if local else None
    monkeypatch.setattr(tensorrt_api, "installed_libraries", lambda: installed)
    monkeypatch.setattr(tensorrt_api, "local_generation", lambda platform: found)
    answer = tensorrt_api.unavailable_reason(Generation.parse(generation))
    assert reason in answer
    assert bool(answer) is bool(reason)


def test_tensorrt_on_its_device_is_preferred_and_bound_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = ["tensorrt", "tensorrt_rtx"]
    monkeypatch.setattr(tensorrt_api, "installed_libraries", lambda: both)
    monkeypatch.setattr(
        tensorrt_api, "local_generation", lambda platform: Generation.parse("cuda-sm90")
    )
    builder = TensorrtBuilder()
    local, other = Generation.parse("cuda-sm90"), Generation.parse("cuda-sm89")
    assert builder.is_device_bound(local)
    assert list(builder.toolchain(local)) == ["tensorrt"]
    assert not builder.is_device_bound(other)
    assert list(builder.toolchain(other)) == ["tensorrt_rtx"]


@pytest.mark.parametrize(("has_flag", "flags"), [(True, 2), (False, 0)])
def test_networks_are_strongly_typed_with_or_without_the_flag(has_flag: bool, flags: int) -> None:
    enum = SimpleNamespace(STRONGLY_TYPED=1) if has_flag else SimpleNamespace()
    trt = SimpleNamespace(NetworkDefinitionCreationFlag=enum)
    assert tensorrt_api.network_flags(trt) == flags


def test_fp32_means_fp32() -> None:
    """TensorRT takes TF32 for it unless told otherwise, and no such engine could be proven."""
    trt = pytest.importorskip("tensorrt_rtx", reason="install tensorrt-rtx-cu13")
    session = tensorrt_api.api_for(Generation.parse("cuda-sm89")).session(Messages(), {})
    assert not session.config.get_flag(trt.BuilderFlag.TF32)
