"""One graph through the importer, the exported program, the rewrites and Inductor."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch.export import ExportedProgram

from compiler_worker.builders.failures import build_errors
from compiler_worker.builders.graphs import export_dynamic
from compiler_worker.fx_rewrites.names import NAMES, rewrites_for
from compiler_worker.fx_rewrites.rewrite import rewrite_graph, rewritten
from compiler_worker.onnx_to_fx import graph_module_from_onnx
from services.contracts.errors import BuildError, EngineError, ProofError, SmeltError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import BlobRef, MasterRecord
from services.engines.device.device_probe import probe_device
from services.engines.fallback.fallback_engine import FallbackEngine, FallbackMode, FallbackSpec
from tests.faults.graphs.answers import Answers, by_onnxruntime, by_torch, difference
from tests.faults.graphs.cases import Case, pruned, with_settings

Stage = Literal["imported", "exported", "rewritten", "compiled"]
Answer = Callable[[int], Answers]
# The others make calls of cuDNN and of Triton.
_RUN_BY_CPUS = tuple(n for n in NAMES if n not in ("fused_convolutions", "short_attention"))
_EMPTY = "a tensor of the call is empty"


@dataclass(frozen=True)
class Verdict:
    """What became of a graph.

    Attributes:
        kind: "wrong" must not happen.
        stage: the last one that it came to.
        reason: of a refusal, or what is wrong.
        notes: outputs in which ONNX Runtime and the evaluator differ; the importer agrees with one.
    """

    kind: Literal["equal", "refused", "wrong"]
    stage: Stage
    reason: str = ""
    notes: tuple[str, ...] = ()


class WrongError(Exception):
    """An answer that is neither of the two, or no answer and no refusal either."""

    def __init__(self, stage: Stage, reason: str) -> None:
        super().__init__(reason)
        self.stage = stage


def judged(case: Case, last: Stage = "rewritten", *, has_runtime: bool = True) -> Verdict:
    """Take a graph through all stages up to one; each must give right answers at all sizes."""
    run = _Run(case, has_runtime=has_runtime)
    try:
        for stage in run.stages(last):
            run.stage = stage
    except SmeltError as error:
        return Verdict("refused", run.stage, _refusal(error), tuple(run.notes))
    except WrongError as error:
        return Verdict("wrong", error.stage, str(error), tuple(run.notes))
    if run.refused:
        return Verdict("refused", run.stage, run.refused, tuple(run.notes))
    return Verdict("equal", run.stage, "", tuple(run.notes))


class _Run:
    """One graph on its way.

    Attributes:
        stage: the last one that it came to.
        refused: why a call of an empty tensor failed, where one did.
        notes: see `Verdict`.
    """

    def __init__(self, case: Case, *, has_runtime: bool) -> None:
        self.case = case
        self.stage: Stage = "imported"
        self.refused = ""
        self.notes: list[str] = []
        self._has_runtime = has_runtime
        self._runtime = self._by_onnxruntime(case)

    def _by_onnxruntime(self, case: Case) -> list[Answers | None] | str:
        return by_onnxruntime(case) if self._has_runtime else "left out"

    def stages(self, last: Stage) -> Iterator[Stage]:
        """Each stage when it has begun."""
        yield "imported"
        with _foreign("imported"):
            module = graph_module_from_onnx(self.case.model)
        self._check_import(lambda i: by_torch(self.case, module, i))
        if last == "imported" or not self.case.sizes:
            return
        yield "exported"
        program = self._exported(module)
        # A guard holds for what was traced; sizes are checked against the ranges instead.
        graph = program.module(check_guards=False)
        self._check("exported", lambda i: by_torch(self.case, graph, i))
        yield "rewritten"
        with _foreign("rewritten"):
            after = program.module(check_guards=False)
            rewrite_graph(after, _RUN_BY_CPUS)
        self._check("rewritten", lambda i: by_torch(self.case, after, i))
        if last == "compiled":
            yield "compiled"
            program = rewritten(program, rewrites_for("cpu"), self._exported).program
            self._check("compiled", self._compiled(program))

    def _exported(self, module: torch.fx.GraphModule) -> ExportedProgram:
        with build_errors("torch.export failed"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return export_dynamic(module, self.case.specs, self.case.ranges)

    def _compiled(self, program: ExportedProgram) -> Answer:
        """Inductor's code, as a replica's fallback makes and runs it."""
        with tempfile.TemporaryDirectory() as folder, _foreign("compiled"):
            path = Path(folder) / "program.pt2"
            # As `export_program` does: torch 2.13 saves no weight of no elements.
            with build_errors("torch.export failed"):
                torch.export.save(program, path)
            engine = FallbackEngine.load(
                FallbackSpec(
                    program_path=path,
                    master=_record(self.case),
                    buckets=(),
                    device=_device(),
                    num_threads=1,
                )
            )
        if engine.mode is not FallbackMode.COMPILED:
            raise BuildError(engine.reason)
        return lambda i: list(engine.run(self.case.feeds[i]).values())

    def _check_import(self, answer: Answer) -> None:
        """Compare at all sizes, and go on without those at which nothing can be computed."""
        kept = []
        for setting in range(len(self.case.sizes)):
            try:
                self._check_at("imported", setting, answer)
                kept.append(setting)
            except WrongError as error:
                if not isinstance(error.__cause__, Exception) or not self._may_fail(setting):
                    raise
                if self._answered(setting):
                    cause = error.__cause__
                    self.refused = _refusal(
                        ProofError(f"{_EMPTY}: {type(cause).__name__}: {cause}")
                    )
        self.case = with_settings(self.case, kept)
        if not isinstance(self._runtime, str):
            self._runtime = [self._runtime[i] for i in kept]

    def _may_fail(self, setting: int) -> bool:
        """Where a tensor is empty torch has no maximum; what nobody computes is no valid call."""
        is_empty = any(value.arrays[setting].size == 0 for value in self.case.values.values())
        return is_empty or (not isinstance(self._runtime, str) and not self._answered(setting))

    def _answered(self, setting: int) -> bool:
        return isinstance(self._runtime, str) or self._runtime[setting] is not None

    def _check(self, stage: Stage, answer: Answer) -> None:
        for setting in range(len(self.case.sizes)):
            self._check_at(stage, setting, answer)

    def _check_at(self, stage: Stage, setting: int, answer: Answer) -> None:
        with _foreign(stage, f"at {self.case.sizes[setting]}: "):
            answers = answer(setting)
        for index, (name, found) in enumerate(zip(self.case.outputs, answers, strict=True)):
            value = self.case.values[name]
            fault = difference(found, value.arrays[setting], value)
            other = self._other(setting, index, name, is_needed=bool(fault))
            second = fault if other is None else difference(found, other, value)
            if fault and second:
                raise WrongError(stage, self._told(name, setting, fault, other is None, second))
            if (fault or second) and stage == "imported":
                whom = "the evaluator" if second else "ONNX Runtime"
                self.notes.append(f"{self._op(name)} as {whom}: {fault or second}")

    def _other(self, setting: int, index: int, name: str, *, is_needed: bool) -> Array | None:
        """ONNX Runtime's answer; of the output alone where it takes the whole graph not."""
        answers = self._runtime
        if isinstance(answers, str) and is_needed:
            answers, index = self._by_onnxruntime(pruned(self.case, name)), 0
        if isinstance(answers, str) or (found := answers[setting]) is None:
            return None
        array: Array = found[index]
        return array

    def _told(self, name: str, setting: int, fault: str, is_alone: bool, second: str) -> str:
        runtime = "no answer" if is_alone else second
        where = f"{self._op(name)} '{name}' at {dict(self.case.sizes[setting])}"
        return f"{where}: {fault}; ONNX Runtime: {runtime}"

    def _op(self, name: str) -> str:
        return next((n.op_type for n in self.case.model.graph.node if name in n.output), "")


@contextmanager
def _foreign(stage: Stage, where: str = "") -> Iterator[None]:
    """Errors that are no refusals are faults; so is an engine's that was loaded."""
    try:
        yield
    except Exception as error:
        if isinstance(error, SmeltError) and not isinstance(error, EngineError):
            raise
        raise WrongError(stage, f"{where}{type(error).__name__}: {str(error)[:300]}") from error


def _refusal(error: SmeltError) -> str:
    """The reason without what is the graph's own: names, numbers, shapes."""
    text = getattr(error, "reason", None) or str(error).splitlines()[0]
    name = f"{type(error).__name__}: {getattr(error, 'op_type', '')} ".replace(" :", ":")
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'*'", text)
    return (name + re.sub(r"\[[^\]]*\]|-?\d+(\.\d+)?", "*", text))[:160]


@cache
def _device() -> DeviceFacts:
    return probe_device()


def _record(case: Case) -> MasterRecord:
    return MasterRecord(
        digest="a" * 64,
        files={"model.onnx": BlobRef(sha256="b" * 64, num_bytes=1)},
        inputs=case.specs,
        outputs=case.output_specs,
        opset=20,
        num_parameters=0,
    )
