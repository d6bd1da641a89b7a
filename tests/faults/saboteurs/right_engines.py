"""Right engines of all kinds that this machine builds: each has to be proven."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler_worker.builders.select import builder_for
from services.contracts.errors import SmeltError
from services.contracts.hardware.kinds import EngineKind, Precision
from services.engines.device.device_probe import probe_device
from tests.faults.saboteurs.subject import Subject
from tests.faults.saboteurs.zoo import ZOO

_CPU_KINDS = (EngineKind.ONNXRUNTIME, EngineKind.OPENVINO)
# Compiled for half a minute each: few stand for many.
_COMPILED = ("encoder", "recommender", "classifier", "regression")
# Of ai.onnx.ml no kind has anything but ONNX Runtime.
_NOT_OPENVINO = ("trees", "strings")


@dataclass(frozen=True, kw_only=True)
class Right:
    """What the proof says of a right engine.

    Attributes:
        reason: why it is refused; "" when it is proven.
    """

    model: str
    seed: int
    kind: str
    precision: Precision
    reason: str

    @property
    def is_proven(self) -> bool:
        """Whether it is."""
        return not self.reason

    @property
    def name(self) -> str:
        """Which one."""
        return f"{self.model} {self.seed} {self.kind} {self.precision}"


def right_engines(
    models: Sequence[str], precisions: Sequence[Precision], seeds: Sequence[int], folder: Path
) -> Iterator[Right]:
    """Build and prove; each is told on standard error."""
    for name in models:
        for seed in seeds:
            subject = Subject.of(name, ZOO[name], seed, folder / f"{name}{seed}")
            for precision in precisions:
                for kind in _kinds(name, seed, precision):
                    right = _proven(subject, seed, kind, precision)
                    sys.stderr.write(f"{right.name}: {right.reason or 'proven'}\n")
                    yield right


def _kinds(name: str, seed: int, precision: Precision) -> list[EngineKind | None]:
    if precision not in ZOO[name].precisions:
        return []
    if precision is Precision.FP16:
        return [None]
    generation = probe_device().parsed_generation
    kinds = [k for k in _CPU_KINDS if k is not EngineKind.OPENVINO or name not in _NOT_OPENVINO]
    if name in _COMPILED and not seed:
        kinds.append(EngineKind.INDUCTOR)
    return [k for k in kinds if not builder_for(k).unavailable_reason(generation, precision)]


def _proven(subject: Subject, seed: int, kind: EngineKind | None, precision: Precision) -> Right:
    try:
        engine = subject.built(kind, precision)
        reason = subject.judged(engine, kind, precision, seed=seed + 11).reason
    except SmeltError as error:
        reason = f"{type(error).__name__}: {error}"
    return Right(
        model=subject.name,
        seed=seed,
        kind=kind or "eager PyTorch",
        precision=precision,
        reason=reason,
    )
