"""The rows of the conformance suite that need a CUDA device, for the generation that is here."""

from compiler_worker.builders.onnxruntime_builder import OnnxruntimeBuilder
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.kinds import EngineKind, Precision
from services.engines.device.device_probe import probe_device
from tests.conformance.cases import EngineCase

LOCAL = probe_device().generation
# By precision: the largest distance to the float32 reference; outputs are about 1.
MAX_ABS = {Precision.FP32: 2e-5, Precision.FP16: 1e-2, Precision.BF16: 5e-2}


def _case(kind: EngineKind, precision: Precision, form: str, *, is_bounded: bool) -> EngineCase:
    return EngineCase(
        name=f"{kind}-cuda-{precision}",
        kind=kind,
        precision=precision,
        generation=LOCAL,
        max_abs=MAX_ABS[precision],
        is_bounded=is_bounded,
        form=form,
        has_files=form != "published",
        reads_master=form != "typed",
    )


def _inductor(precision: Precision) -> EngineCase:
    return _case(EngineKind.INDUCTOR, precision, "captured", is_bounded=True)


def _onnxruntime(precision: Precision) -> EngineCase:
    form = "published" if precision is Precision.FP32 else "typed"
    return _case(EngineKind.ONNXRUNTIME, precision, form, is_bounded=False)


def _xla(precision: Precision) -> EngineCase:
    return _case(EngineKind.XLA, precision, "executable", is_bounded=True)


def _has_cuda_provider() -> bool:
    """Whether the ONNX Runtime that is installed is the one for CUDA."""
    generation = Generation.parse(LOCAL)
    reason = OnnxruntimeBuilder().unavailable_reason(generation, Precision.FP32)
    return generation.platform is Platform.CUDA and not reason


def _fallback(form: str) -> EngineCase:
    return EngineCase(
        name=f"fallback-cuda-{form}",
        kind=None,
        generation=LOCAL,
        max_abs=MAX_ABS[Precision.FP32],
        is_bounded=True,
        has_buckets=form == "compiled",
        form=form,
    )


GRAPHED = _inductor(Precision.FP16)
COMPILED_FALLBACK = _fallback("compiled")
PUBLISHED_CASES = (_inductor(Precision.FP32), GRAPHED, _inductor(Precision.BF16))
ONNXRUNTIME_CASES = (
    (_onnxruntime(Precision.FP32), _onnxruntime(Precision.FP16)) if _has_cuda_provider() else ()
)
# Skipped where the host has no JAX for CUDA.
XLA_CASES = (_xla(Precision.FP32), _xla(Precision.FP16), _xla(Precision.BF16))
CUDA_CASES = (
    *PUBLISHED_CASES,
    *ONNXRUNTIME_CASES,
    *XLA_CASES,
    COMPILED_FALLBACK,
    _fallback("eager"),
)
