"""The inside of a build: one key, made by its builder."""

import time

from compiler_worker.builders.base import BuildResult, BuildSpec
from compiler_worker.children.child import Events, limit_threads
from compiler_worker.children.requests import BuildRequest, Stage
from compiler_worker.inputs.calibration_draws import calibration_draws
from compiler_worker.master.samples import read_arrays
from compiler_worker.memory import peak_resident_bytes
from compiler_worker.timing.host_turns import beside_others
from services.contracts.kserve.tensors import Array
from services.engines.caches.compile_cache import use_compile_cache


def build_one(request: BuildRequest, events: Events) -> BuildResult:
    """Build one key; raises BuildError with the builder's words."""
    limit_threads(request.num_threads)
    # After the line above: builders import libraries that read it.
    from compiler_worker.builders.select import builder_for

    use_compile_cache(request.cache_dir)
    plan = BuildSpec(
        key=request.key,
        master=request.master,
        master_path=request.master_path,
        calibration_path=request.calibration_path,
        drawn=_drawn(request),
        compile_cache=request.compile_cache,
        typed_graphs=request.cache_dir / "typed",
    )
    with beside_others(request.cache_dir, events), events.stage(Stage.BUILD):
        started = time.monotonic()
        built = builder_for(request.key.kind).build(plan, request.workspace, events.line)
        took = {"duration_s": time.monotonic() - started}
    return built.model_copy(update={**took, "peak_memory_bytes": peak_resident_bytes()})


def _drawn(request: BuildRequest) -> list[dict[str, Array]]:
    """What is calibrated with beside samples of traffic."""
    if request.drawn_by is None or request.calibration_path is None:
        return []
    # Not in a builder's module: a change of what proofs draw would build all engines anew.
    sampled = read_arrays(request.calibration_path)
    return calibration_draws(request.master, request.drawn_by, request.key.buckets, sampled)
