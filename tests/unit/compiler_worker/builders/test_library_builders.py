"""The kinds that compile at load: ONNX Runtime and OpenVINO."""

from importlib.metadata import version
from pathlib import Path

import onnx
import pytest

from compiler_worker.builders.onnxruntime_builder import OnnxruntimeBuilder
from compiler_worker.builders.openvino_builder import OpenvinoBuilder
from compiler_worker.builders.select import builder_for
from compiler_worker.builders.typed_graphs import typed_files
from services.contracts.errors import BuildError, BuildUnavailableError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind, Precision
from tests.unit.compiler_worker.builders.conftest import PlanMaker

V3 = "cpu-x86_64-v3"
KINDS = [EngineKind.ONNXRUNTIME, EngineKind.OPENVINO]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_published_and_the_master_is_needed(
    make_plan: PlanMaker, workspace: Path, kind: EngineKind
) -> None:
    output = builder_for(kind).build(make_plan(kind, V3), workspace, print)
    assert output.files == {}
    assert output.needs_master
    assert list(workspace.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_that_the_library_refuses_fails_with_its_words(
    make_plan: PlanMaker, tmp_path: Path, workspace: Path, kind: EngineKind
) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(BuildError, match="refused") as caught:
        builder_for(kind).build(make_plan(kind, V3, path=path), workspace, print)
    assert caught.value.log_tail


@pytest.mark.parametrize("kind", KINDS)
def test_a_precision_it_does_not_have_is_unavailable(
    make_plan: PlanMaker, workspace: Path, kind: EngineKind
) -> None:
    plan = make_plan(kind, V3, precision=Precision.FP16)
    with pytest.raises(BuildUnavailableError, match="fp16"):
        builder_for(kind).build(plan, workspace, print)


def test_the_precision_hint_is_in_the_key() -> None:
    bf16 = Generation.parse("cpu-x86_64-amx")
    hints = [OpenvinoBuilder().options(bf16, p) for p in (Precision.FP32, Precision.BF16)]
    assert hints == [{"INFERENCE_PRECISION_HINT": "f32"}, {"INFERENCE_PRECISION_HINT": "bf16"}]


@pytest.mark.parametrize(
    ("generation", "hint"), [("cpu-x86_64-avx512_bf16", "bf16"), ("cpu-x86_64-avx512_vnni", "f32")]
)
def test_what_is_not_quantised_is_computed_as_the_generation_can(
    generation: str, hint: str
) -> None:
    for precision in (Precision.INT8, Precision.INT8_WEIGHT_ONLY):
        options = OpenvinoBuilder().options(Generation.parse(generation), precision)
        assert options["INFERENCE_PRECISION_HINT"] == hint


@pytest.mark.parametrize("kind", [EngineKind.OPENVINO, EngineKind.ONNXRUNTIME])
def test_the_quantisers_version_is_in_the_key_where_it_made_the_graph(kind: EngineKind) -> None:
    generation = Generation.parse("cpu-x86_64-avx512_vnni")
    found = {
        p: builder_for(kind).options(generation, p).get("quantiser", "")
        for p in Precision
        if not builder_for(kind).unavailable_reason(generation, p)
    }
    assert found.pop(Precision.INT8) == f"nncf {version('nncf')}"
    assert set(found.values()) == {""}


def test_a_typed_graph_is_published_as_one_file(make_plan: PlanMaker, workspace: Path) -> None:
    plan = make_plan(EngineKind.ONNXRUNTIME, "cuda-sm90", precision=Precision.FP16)
    files = typed_files(plan, workspace / "typed.onnx", print)
    assert list(files) == ["typed.onnx"]
    assert [path.name for path in workspace.iterdir()] == ["typed.onnx"]
    kinds = {tensor.data_type for tensor in onnx.load(files["typed.onnx"]).graph.initializer}
    assert onnx.TensorProto.FLOAT16 in kinds


def test_the_cpu_build_needs_no_device(make_plan: PlanMaker) -> None:
    for builder in (OnnxruntimeBuilder(), OpenvinoBuilder()):
        assert not builder.is_device_bound(Generation.parse(V3))
