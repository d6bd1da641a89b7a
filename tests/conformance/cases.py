"""One row per engine kind and form; every row inherits all tests of `test_engines.py`."""

from dataclasses import dataclass

from services.contracts.hardware.facts import Platform
from services.contracts.hardware.kinds import EngineKind, Precision
from services.engines.device.device_probe import probe_device

# Every supported x86-64 host runs this generation, so the rows build everywhere.
PORTABLE_CPU = "cpu-x86_64-v3"
# bf16 is built on its own generation: this host's (some class from AVX512_BF16 on), or the
# row is skipped.
BF16_CPU = probe_device(Platform.CPU).generation


@dataclass(frozen=True, kw_only=True)
class EngineCase:
    """A form of engine.

    Attributes:
        kind: None for the fallback, which is no published engine.
        generation: what it is built for.
        is_bounded: whether it refuses shapes outside its buckets.
        max_abs: largest distance to the reference; outputs of the tiny model are about 1.
        form: how it is built, where a kind has several forms (see `workshop.py`).
        has_buckets: whether its recipe names any; those by default begin nowhere at 0.
        has_files: whether it has files of its own.
        reads_master: whether its loader reads the master.
        is_variant: another form of a kind that compiles for long; `make test` has the first, and of
            the fallback the eager one (that it compiles, `test_fallback_engine.py` has).
    """

    name: str
    kind: EngineKind | None
    max_abs: float
    is_bounded: bool
    precision: Precision = Precision.FP32
    generation: str = PORTABLE_CPU
    form: str = "published"
    has_buckets: bool = True
    has_files: bool = True
    reads_master: bool = False
    is_variant: bool = False


_FP32 = 2e-5
_BF16 = 5e-2

ENGINE_CASES = (
    EngineCase(name="inductor", kind=EngineKind.INDUCTOR, max_abs=_FP32, is_bounded=True),
    EngineCase(
        name="inductor-bf16",
        kind=EngineKind.INDUCTOR,
        is_variant=True,
        precision=Precision.BF16,
        generation=BF16_CPU,
        max_abs=_BF16,
        is_bounded=True,
    ),
    EngineCase(
        name="inductor-artifact",
        kind=EngineKind.INDUCTOR,
        is_variant=True,
        max_abs=_FP32,
        is_bounded=True,
        form="artifact",
        reads_master=True,
    ),
    EngineCase(
        name="inductor-artifact-bf16",
        kind=EngineKind.INDUCTOR,
        is_variant=True,
        precision=Precision.BF16,
        max_abs=_BF16,
        is_bounded=True,
        form="artifact",
        reads_master=True,
    ),
    EngineCase(
        name="onnxruntime",
        kind=EngineKind.ONNXRUNTIME,
        max_abs=_FP32,
        is_bounded=False,
        has_files=False,
        reads_master=True,
    ),
    EngineCase(
        name="openvino",
        kind=EngineKind.OPENVINO,
        max_abs=_FP32,
        is_bounded=False,
        has_files=False,
        reads_master=True,
    ),
    EngineCase(
        name="openvino-bf16",
        kind=EngineKind.OPENVINO,
        precision=Precision.BF16,
        generation=BF16_CPU,
        max_abs=_BF16,
        is_bounded=False,
        has_files=False,
        reads_master=True,
    ),
    EngineCase(
        name="tensorrt",
        kind=EngineKind.TENSORRT,
        generation="cuda-sm89",
        max_abs=_FP32,
        is_bounded=True,
    ),
    EngineCase(name="xla", kind=EngineKind.XLA, max_abs=_FP32, is_bounded=True, reads_master=True),
    EngineCase(
        name="xla-bf16",
        kind=EngineKind.XLA,
        is_variant=True,
        precision=Precision.BF16,
        generation=BF16_CPU,
        max_abs=_BF16,
        is_bounded=True,
        reads_master=True,
    ),
    EngineCase(
        name="fallback-compiled",
        kind=None,
        is_variant=True,
        max_abs=_FP32,
        is_bounded=True,
        form="compiled",
    ),
    EngineCase(
        name="fallback-compiled-by-default",
        kind=None,
        is_variant=True,
        max_abs=_FP32,
        is_bounded=True,
        form="compiled",
        has_buckets=False,
    ),
    EngineCase(
        name="fallback-eager",
        kind=None,
        max_abs=_FP32,
        is_bounded=True,
        form="eager",
        has_buckets=False,
    ),
)
