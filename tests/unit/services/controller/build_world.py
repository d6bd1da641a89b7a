"""A small world for tests of the build policy: documents, and a worker that needs no compiler."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_plan import BuildPlan, PlannedKey
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import (
    BlobRef,
    EngineManifest,
    MasterRecord,
    ModelVersion,
    OutputCheck,
    Proof,
    ProofOutcome,
    PublishedEngine,
    SideTiming,
    Timing,
)
from services.contracts.model.recipe import Bucket, Recipe
from services.contracts.ratio import Ratio
from services.contracts.registry.registry import Registry
from services.contracts.selection.joint_run import JointRun, JointTiming
from services.contracts.store.object_store import open_store
from services.controller.interfaces import BuildTask, NodePool, TaskState, TaskStatus

GENERATION = "cpu-x86_64-v3"
DEVICE = DeviceFacts(
    generation=GENERATION, name="Some Xeon", memory_gib=64, toolchain={"torch": "2.13.0"}
)
NODE_CLASS = NodeClass.from_facts(DEVICE)
MASTER = MasterRecord(
    digest="a" * 64,
    files={"model.onnx": BlobRef(sha256="b" * 64, num_bytes=1)},
    inputs=(),
    outputs=(),
    opset=20,
    num_parameters=1,
)
AT = "2026-01-01T00:00:00.000+00:00"


def version(**changes: Any) -> ModelVersion:
    """Version 1 of model `m`, with changes."""
    fields: dict[str, Any] = {
        "name": "m",
        "version": 1,
        "master": MASTER,
        "recipe": Recipe(),
        "source": "m.onnx",
        "source_fingerprint": "0",
        "created_at": AT,
    }
    return ModelVersion(**fields | changes)


def pool(num_nodes: int = 1, node_class: NodeClass = NODE_CLASS, source: str = "ray") -> NodePool:
    """Nodes of one class."""
    return NodePool(node_class=node_class, source=source, num_nodes=num_nodes)


def key(kind: EngineKind = EngineKind.OPENVINO, **changes: Any) -> BuildKey:
    """A key of `MASTER` for `GENERATION`, with changes."""
    fields: dict[str, Any] = {
        "master_digest": MASTER.digest,
        "kind": kind,
        "precision": Precision.FP32,
        "buckets": (Bucket(dims={}),),
        "generation": GENERATION,
        "toolchain": {},
    }
    return BuildKey(**fields | changes)


KEYS = (key(EngineKind.ONNXRUNTIME), key(EngineKind.OPENVINO))


def plan(
    keys: tuple[BuildKey, ...] = KEYS, *, is_anywhere: bool = False, **changes: Any
) -> BuildPlan:
    """A plan made on a node of `NODE_CLASS`, with changes."""
    fields: dict[str, Any] = {
        "model": "m",
        "version": 1,
        "node_class": NODE_CLASS,
        "facts": DEVICE,
        "planned": tuple(PlannedKey(key=each, is_anywhere=is_anywhere) for each in keys),
        "created_at": AT,
    }
    return BuildPlan(**fields | changes)


def proof(outcome: ProofOutcome = ProofOutcome.PASSED, **changes: Any) -> Proof:
    """A proof on `DEVICE`, with changes."""
    fields: dict[str, Any] = {
        "outcome": outcome,
        "reason": "" if outcome is ProofOutcome.PASSED else "it differs",
        "device": DEVICE,
        "created_at": AT,
    }
    return Proof(**fields | changes)


def paired(low: float, high: float) -> tuple[Timing, ...]:
    """What an engine took beside the fallback: so many times faster at least, and at most."""
    fallback = SideTiming(p50_s=1.0, p95_s=1.0, throughput=1.0, peak_memory_bytes=1)
    ratio = Ratio(median=(low * high) ** 0.5, low=low, high=high, num_pairs=20)
    took = Timing(
        bucket="b",
        sizes={},
        p50_s=1.0,
        p95_s=1.0,
        throughput=1.0,
        eager_p50_s=1.0,
        fallback=fallback,
        ratio=ratio,
    )
    return (took,)


def joint_run(low: float, high: float, created_at: str) -> JointRun:
    """A run of all of `KEYS` that found the same of each."""
    (timing,) = paired(low, high)
    assert timing.fallback
    engine_side = timing.fallback.model_copy(update={"ratio": timing.ratio})
    shape = JointTiming(
        bucket="b",
        sizes={},
        eager=timing.fallback,
        fallback=timing.fallback,
        engines={each.digest(): engine_side for each in KEYS},
    )
    return JointRun(
        master_digest=MASTER.digest, device=DEVICE, shapes=(shape,), created_at=created_at
    )


def manifest(of: BuildKey) -> EngineManifest:
    """A manifest without files."""
    return EngineManifest(
        key=of,
        files={},
        inputs=(),
        outputs=(),
        needs_master=True,
        build_duration_s=1.0,
        created_at=AT,
    )


def engine(of: BuildKey, proven: Proof | None = None) -> PublishedEngine:
    """A published engine, proven if nothing else is given."""
    return PublishedEngine(digest=of.digest(), manifest=manifest(of), proof=proven or proof())


def record(
    of: BuildKey, outcome: BuildOutcome = BuildOutcome.FAILED, started_at: str = AT, **changes: Any
) -> BuildRecord:
    """One attempt that lasted two seconds."""
    fields: dict[str, Any] = {
        "key": of,
        "outcome": outcome,
        "stage": "build",
        "reason": "" if outcome in (BuildOutcome.PROVEN, BuildOutcome.BUILT) else "it broke",
        "stage_durations_s": {"build": 2.0},
        "started_at": started_at,
    }
    return BuildRecord(**fields | changes)


def refusal(of: BuildKey, **changes: Any) -> BuildRecord:
    """An attempt whose proof compared answers and found them wrong; with changes of the proof."""
    check = OutputCheck(
        bucket="b",
        sizes={},
        output="y",
        rel_l2=1.0,
        max_abs=1.0,
        cosine_distance=1.0,
        fault="it differs",
    )
    refused = proof(ProofOutcome.FAILED, **{"checks": (check,)} | changes)
    return record(of, BuildOutcome.PROOF_FAILED, reason=refused.reason, proof=refused)


@dataclass
class InstantWorker:
    """A BuildLauncher whose tasks do their work when the test says so, in no time.

    Attributes:
        broken: kinds of which every build fails.
        deadly: kinds at which the task dies without a record.
        num_losses: how many tasks are still to lose their nodes before they build.
        compiler: repeated by plans.
        has_deadlines: as Kubernetes, which ends what takes too long.
        num_proofs: told apart by their times, as real ones are.
        timings: of each proof.
        on_timed: called by a task that finds nothing to build or to prove.
    """

    registry: Registry
    plan: BuildPlan = field(default_factory=plan)
    broken: set[EngineKind] = field(default_factory=set)
    deadly: set[EngineKind] = field(default_factory=set)
    num_losses: int = 0
    compiler: str = ""
    has_deadlines: bool = False
    tasks: dict[str, BuildTask] = field(default_factory=dict)
    ended: dict[str, TaskStatus] = field(default_factory=dict)
    launched: list[BuildTask] = field(default_factory=list)
    num_proofs: int = 0
    timings: tuple[Timing, ...] = ()
    on_timed: Callable[[], None] = lambda: None

    def launch(self, task: BuildTask) -> None:
        if task.name not in self.tasks:
            self.tasks[task.name] = task
            self.launched.append(task)

    def statuses(self) -> dict[str, TaskStatus]:
        running = TaskStatus(state=TaskState.RUNNING)
        return {name: self.ended.get(name, running) for name in self.tasks}

    def forget(self, name: str) -> None:
        self.tasks.pop(name, None)
        self.ended.pop(name, None)

    def work(self) -> None:
        """Run every task to its end."""
        for name, task in self.tasks.items():
            if name in self.ended:
                continue
            made = {"compiler": task.compiler, "version": task.version}
            self.registry.write_plan(self.plan.model_copy(update=made))
            if self.num_losses:
                self.num_losses -= 1
                self.ended[name] = TaskStatus(
                    state=TaskState.ENDED,
                    detail="its node was lost",
                    is_failed=True,
                    is_lost=True,
                    run=f"run {len(self.launched)}",
                )
            else:
                is_dead = self._run(task)
                detail = "killed" if is_dead else ""
                self.ended[name] = TaskStatus(
                    state=TaskState.ENDED, detail=detail, is_failed=is_dead
                )

    def _run(self, task: BuildTask) -> bool:
        published = {engine.digest for engine in self.registry.engines()}
        if not task.key_digests and {each.digest for each in self.plan.planned} <= published:
            self.on_timed()
            return False
        for planned in self.plan.planned:
            if task.key_digests and planned.digest not in task.key_digests:
                continue
            if planned.key.kind in self.deadly:
                return True
            self.build(planned.key)
        return False

    def build(self, of: BuildKey) -> None:
        if of.kind in self.broken:
            self.registry.record_build(record(of))
            return
        self.num_proofs += 1
        number = f"{self.num_proofs // 60:02d}:{self.num_proofs % 60:02d}"
        passed = proof(timings=self.timings, created_at=f"2026-01-01T00:{number}.000+00:00")
        if any(known.digest == of.digest() for known in self.registry.engines()):
            self.registry.add_proof(of.digest(), passed)
        else:
            self.registry.publish_engine(manifest(of), {}, passed)
            self.registry.record_build(record(of, BuildOutcome.PROVEN))


def registry_with_model(folder: Path) -> Registry:
    """Store and cache below a folder, with version 1 of model `m`."""
    made = Registry(open_store(str(folder / "store")), folder / "cache")
    made.add_model_version(
        name="m", master=MASTER, recipe=Recipe(), source="s", source_fingerprint="0"
    )
    return made
