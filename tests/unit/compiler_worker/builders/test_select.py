"""Every kind has a build half, and answers before building what the key must know."""

import pytest

from compiler_worker.builders.select import builder_for
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.kinds import EngineKind, Precision
from services.engines.device.device_probe import probe_device

V3 = Generation.parse("cpu-x86_64-v3")
SM89 = Generation.parse("cuda-sm89")


@pytest.mark.parametrize("kind", EngineKind)
def test_each_kind_has_a_builder_of_its_name(kind: EngineKind) -> None:
    builder = builder_for(kind)
    assert type(builder).__name__ == f"{kind.value.capitalize()}Builder"
    assert type(builder).__module__ == f"compiler_worker.builders.{kind.value}_builder"


@pytest.mark.parametrize("kind", EngineKind)
def test_the_toolchain_is_what_a_device_of_this_host_reports(kind: EngineKind) -> None:
    generation = SM89 if kind is EngineKind.TENSORRT else V3
    builder = builder_for(kind)
    reason = builder.unavailable_reason(generation, Precision.FP32)
    if kind is EngineKind.XLA and reason:
        pytest.skip(reason)
    assert not reason
    reported = probe_device(override=str(generation)).toolchain
    toolchain = builder.toolchain(generation)
    assert toolchain
    assert toolchain.items() <= reported.items()


@pytest.mark.parametrize("kind", EngineKind)
def test_options_are_text_and_the_same_every_time(kind: EngineKind) -> None:
    generation = SM89 if kind is EngineKind.TENSORRT else V3
    options = builder_for(kind).options(generation, Precision.FP32)
    assert options
    assert all(isinstance(value, str) for value in options.values())
    assert options == builder_for(kind).options(generation, Precision.FP32)


AVX512_BF16 = "cpu-x86_64-avx512_bf16"
REFUSALS = [
    (EngineKind.TENSORRT, "cpu-x86_64-v3", Precision.FP32, "for GPUs, not for cpu-x86_64-v3"),
    (EngineKind.TENSORRT, "cuda-sm90", Precision.FP16, "SM120"),
    (EngineKind.OPENVINO, "cuda-sm90", Precision.FP32, "for CPUs, not for cuda-sm90"),
    (EngineKind.OPENVINO, AVX512_BF16, Precision.FP16, "fp32, bf16 or int8 on a CPU, not in fp16"),
    (EngineKind.OPENVINO, "cpu-x86_64-avx512", Precision.BF16, "AVX512_BF16 or AMX"),
    (EngineKind.ONNXRUNTIME, AVX512_BF16, Precision.BF16, "compute in fp32"),
    (EngineKind.ONNXRUNTIME, "cuda-sm90", Precision.BF16, "bf16"),
    (EngineKind.ONNXRUNTIME, "cuda-sm90", Precision.FP16, "CUDAExecutionProvider wanted"),
    (EngineKind.INDUCTOR, "cpu-x86_64-v2", Precision.FP32, "needs x86-64 with AVX2"),
    (EngineKind.INDUCTOR, "cpu-aarch64-generic", Precision.FP32, "needs x86-64 with AVX2"),
    (EngineKind.INDUCTOR, AVX512_BF16, Precision.FP16, "fp16 on a CPU"),
    (EngineKind.INDUCTOR, "cpu-x86_64-v3", Precision.BF16, "AVX512_BF16 or AMX"),
    (EngineKind.INDUCTOR, "cuda-sm90", Precision.FP16, ""),
    (EngineKind.INDUCTOR, "cpu-x86_64-avx512", Precision.INT8, "AVX512_VNNI is needed"),
    (EngineKind.INDUCTOR, AVX512_BF16, Precision.INT8_WEIGHT_ONLY, "2.6 times as long"),
    (EngineKind.INDUCTOR, AVX512_BF16, Precision.FP8, "no fp8 products"),
    (EngineKind.INDUCTOR, "cuda-sm90", Precision.INT8, "gain nothing over fp16"),
    (EngineKind.OPENVINO, AVX512_BF16, Precision.FP8, "fp32, bf16 or int8 on a CPU, not in fp8"),
    (EngineKind.ONNXRUNTIME, AVX512_BF16, Precision.FP8, "compute in fp32"),
    (EngineKind.ONNXRUNTIME, "cuda-sm90", Precision.INT8, "computes int8 graphs in floats"),
    (EngineKind.XLA, AVX512_BF16, Precision.INT8, "a quantised graph in floats"),
    (EngineKind.XLA, "cuda-sm90", Precision.FP8, "a quantised graph in floats"),
    (EngineKind.TENSORRT, "cuda-sm80", Precision.FP8, "which begin with SM 8.9"),
    (EngineKind.TENSORRT, "cuda-sm89", Precision.INT8_WEIGHT_ONLY, "folds int8 weights back"),
]


@pytest.mark.skipif(
    probe_device().parsed_generation.platform is not Platform.CPU, reason="for hosts without a GPU"
)
@pytest.mark.parametrize(("kind", "generation", "precision", "reason"), REFUSALS)
def test_what_cannot_be_built_has_its_reason(
    kind: EngineKind, generation: str, precision: Precision, reason: str
) -> None:
    found = builder_for(kind).unavailable_reason(Generation.parse(generation), precision)
    assert found
    assert reason in found
