"""Builds each case once per test session and loads it as often as a test wants."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compiler_worker.builders.base import BuildResult, BuildSpec
from compiler_worker.builders.failures import recorded_warnings
from compiler_worker.builders.select import builder_for
from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.facts import DeviceFacts, Generation
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.default_buckets import default_buckets
from services.contracts.model.manifest import BlobRef, EngineManifest
from services.contracts.model.recipe import Bucket, DimRange
from services.engines.base import Engine, LoadSpec
from services.engines.device.device_probe import probe_device
from services.engines.fallback.fallback_engine import FallbackEngine, FallbackSpec
from services.engines.guarded import GuardedEngine
from services.engines.loader import engine_class
from tests.conformance.cases import EngineCase
from tests.conformance.tiny_model import master_record, save_master, tiny_model

if TYPE_CHECKING:
    from services.engines.inductor.cuda_graph import Call

_SMALL = {"batch": DimRange(min=1, opt=2, max=4), "sequence": DimRange(min=0, opt=8, max=16)}
BUCKETS = (
    Bucket(dims=_SMALL),
    Bucket(
        dims={
            "batch": DimRange(min=1, opt=4, max=8),
            "sequence": DimRange(min=1, opt=16, max=32),
        }
    ),
)
# For proofs: the model's mean of no tokens is no number.
NUMBERED_BUCKETS = (
    Bucket(dims=_SMALL | {"sequence": DimRange(min=1, opt=8, max=16)}),
    *BUCKETS[1:],
)
NUM_THREADS = 2

AnyEngine = Engine | GuardedEngine


@dataclass(frozen=True, kw_only=True)
class Built:
    """A case that was built.

    Attributes:
        load: makes a new engine for a device.
    """

    case: EngineCase
    load: Callable[[DeviceFacts], AnyEngine]


@dataclass(frozen=True, kw_only=True)
class Published(Built):
    """A case that has a build key.

    Attributes:
        spec: what `load` is given, for this host's device.
    """

    plan: BuildSpec
    output: BuildResult
    spec: LoadSpec


def build(case: EngineCase, folder: Path) -> Built:
    """Build a case into an empty folder."""
    master_path = save_master(tiny_model(), folder)
    workspace = folder / "workspace"
    workspace.mkdir()
    if case.kind is None:
        return _fallback(case, master_path, workspace)
    return _published(case, case.kind, master_path, workspace)


def plan_for(case: EngineCase, kind: EngineKind, master_path: Path) -> BuildSpec:
    """The plan that the pipeline would make for the tiny model."""
    master, builder = master_record(), builder_for(kind)
    generation = Generation.parse(case.generation)
    key = BuildKey(
        master_digest=master.digest,
        kind=kind,
        precision=case.precision,
        buckets=BUCKETS,
        builder_options=builder.options(generation, case.precision),
        generation=case.generation,
        toolchain=builder.toolchain(generation),
    )
    return BuildSpec(key=key, master=master, master_path=master_path)


def _published(case: EngineCase, kind: EngineKind, master_path: Path, workspace: Path) -> Published:
    plan = plan_for(case, kind, master_path)
    output = _build_output(case, kind, plan, workspace)
    spec = LoadSpec(
        manifest=manifest_of(plan, output),
        master=plan.master,
        directory=workspace,
        master_path=master_path,
        device=probe_device(),
        num_threads=NUM_THREADS,
    )

    def load(device: DeviceFacts) -> AnyEngine:
        for_device = replace(spec, device=device)
        if case.form == "artifact":
            return _load_artifact(for_device)
        return engine_class(kind).load(for_device)

    return Published(case=case, load=load, plan=plan, output=output, spec=spec)


def _build_output(
    case: EngineCase, kind: EngineKind, plan: BuildSpec, workspace: Path
) -> BuildResult:
    if case.form == "artifact":
        from compiler_worker.builders.inductor_artifacts import build_artifacts

        with recorded_warnings():
            return build_artifacts(plan, {}, workspace, print, device="cpu")
    builder = builder_for(kind)
    if kind is not EngineKind.XLA:
        return builder.build(plan, workspace, print)
    # In a process of its own, as the worker does: torchax makes torch know a device of another
    # kind, whose memory is then asked for where CUDA's pinned memory should be.
    with ProcessPoolExecutor(1, get_context("spawn")) as child:
        return child.submit(builder.build, plan, workspace, print).result()


def _load_artifact(spec: LoadSpec) -> AnyEngine:
    """The GPU's path on the CPU: everything but the graph capture itself."""
    from services.engines.compatibility import refuse_incompatible
    from services.engines.inductor.inductor_artifact import ArtifactProgram
    from services.engines.inductor.inductor_engine import InductorEngine

    refuse_incompatible(spec, EngineKind.INDUCTOR)
    return InductorEngine(spec, ArtifactProgram.load(spec, device="cpu", capture=_run_directly))


def _run_directly(call: "Call") -> "Call":
    """Capture nothing: a CPU has no graphs."""
    call()
    return call


def _fallback(case: EngineCase, master_path: Path, workspace: Path) -> Built:
    from compiler_worker.builders.exported_program import export_program

    program_path = workspace / "program.pt2"
    inputs = master_record().inputs
    buckets = BUCKETS if case.has_buckets else default_buckets(inputs, "batch")
    export_program(master_path, buckets, program_path)

    def load(device: DeviceFacts) -> AnyEngine:
        spec = FallbackSpec(
            program_path=program_path,
            master=master_record(),
            buckets=buckets,
            device=device,
            num_threads=NUM_THREADS,
        )
        with pytest.MonkeyPatch.context() as patch:
            if case.form == "eager":
                patch.setenv("PATH", "")  # without a compiler
            return FallbackEngine.load(spec)

    return Built(case=case, load=load)


def manifest_of(plan: BuildSpec, output: BuildResult) -> EngineManifest:
    """A manifest as the pipeline publishes it; digests are not what these tests are about."""
    files = {
        name: BlobRef(sha256="c" * 64, num_bytes=path.stat().st_size)
        for name, path in output.files.items()
    }
    return EngineManifest(
        key=plan.key,
        files=files,
        inputs=plan.master.inputs,
        outputs=plan.master.outputs,
        needs_master=output.needs_master,
        build_duration_s=1.0,
        findings=output.findings,
        created_at="2026-01-01T00:00:00Z",
    )


def unbuildable_reason(case: EngineCase) -> str:
    """Why this host cannot build a case, or ""; the artifact form needs only torch."""
    if case.kind is None or case.form == "artifact":
        return ""
    generation = Generation.parse(case.generation)
    return builder_for(case.kind).unavailable_reason(generation, case.precision)


def unrunnable_reason(case: EngineCase) -> str:
    """Why an engine of this case cannot run on this host, or ""."""
    device = probe_device()
    if not Generation.parse(case.generation).runs_on(device.parsed_generation):
        return f"needs {case.generation}, this host is {device.generation}"
    return "" if case.kind is None else engine_class(case.kind).unavailable_reason()
