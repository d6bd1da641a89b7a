"""Times engines that are the master itself, before anything is built: advice is wrong there most.

Which of two libraries runs a graph faster on a processor cannot be read from the graph: it differs
by 10 to 25 % either way (tests/benchmarks/results/advice_zoo_cpu_202611.md).
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from compiler_worker.builders.base import BuildResult
from compiler_worker.builders.select import builder_for
from compiler_worker.building.publish import engine_manifest
from compiler_worker.children.requests import JointEntrant
from compiler_worker.plans.build_keys import plan_for
from compiler_worker.plans.refusals import Refusals
from compiler_worker.timing.joint import timed_together
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import MasterRecord, ModelVersion


def time_unbuilt(
    version: ModelVersion, generation: Generation, worker: WorkerContext
) -> dict[tuple[EngineKind, Precision], float]:
    """Seconds of a run, at the first bucket's usual and largest sizes, by kind and precision.

    Nothing is proven and nothing kept.

    Args:
        version: whose master is run, in a child process.
        generation: where that is to be.
        worker: its devices and limits.

    Returns:
        Nothing where the device is another, or less than two kinds run the master.

    Raises:
        ProofError: the child was ended, or the first of them does not run.
    """
    device = worker.devices.get(generation.platform)
    if device is None or device.parsed_generation != generation:
        return {}
    # The importer is not run: of such kinds none needs it.
    refusals = Refusals(version.master, worker, (EngineKind.ONNXRUNTIME,))
    plan = plan_for(version, generation, worker.devices, refusal=refusals.reason)
    keys = [
        each.key.model_copy(update={"buckets": each.key.buckets[:1]})
        for each in plan.planned
        if builder_for(each.key.kind).runs_master(each.key.precision)
    ]
    if len(keys) < 2:
        return {}
    with TemporaryDirectory() as folder:
        entrants = [_entrant(key, version.master, Path(folder)) for key in keys]
        timed = timed_together(entrants, version, device, worker, is_fallback_timed=False)
    run = worker.joint_run(timed, version.master, device, entrants[0].digest)
    return {
        (key.kind, key.precision): run.mean_s(key.digest())
        for key in keys
        if key.digest() in run.digests
    }


def _entrant(key: BuildKey, master: MasterRecord, empty: Path) -> JointEntrant:
    manifest = engine_manifest(key, master, BuildResult(files={}, needs_master=True), 0)
    return JointEntrant(manifest=manifest, engine_dir=empty, held_bytes=0)
