"""A joint run, in the child that proves: engines of one master beside each other, in turns."""

import logging
from collections.abc import Sequence

from compiler_worker.children.child import Events
from compiler_worker.children.requests import JointEntrant, JointResult, ProofRequest, Stage
from compiler_worker.inputs.sampling import Sample, timed_samples
from compiler_worker.proof.engine_loading import load_engine
from compiler_worker.references.models import Model
from compiler_worker.timing.benchmark import BenchmarkLimits, Contender, Contest, benchmark
from compiler_worker.timing.fallback import open_fallback
from compiler_worker.timing.host_turns import alone, beside_others
from services.contracts.errors import EngineError, InvalidRequestError
from services.contracts.hardware.facts import Platform
from services.engines.base import Engine
from services.engines.guarded import GuardedEngine

logger = logging.getLogger(__name__)

# All sides are counted within a second; of slower calls kernels say little.
_SLOWEST_S = 0.2


def time_engines(
    request: ProofRequest, engine: Contender, eager: Contender, events: Events
) -> JointResult:
    """Time an engine beside others of its request, eager and the fallback, at each shape.

    Args:
        request: of the engine; what the others have in common with it is read of it.
        engine: loaded.
        eager: loaded too.
        events: what is done is reported there.
    """
    samples = timed_samples(request.master, request.recipe, request.manifest.buckets)
    others: dict[str, Engine] = {}
    failed: dict[str, str] = {}
    with beside_others(request.cache_dir, events), events.stage(Stage.BENCHMARK):
        for entrant in request.beside:
            try:
                others[entrant.digest] = _loaded(entrant, request, samples, events)
            except (EngineError, InvalidRequestError) as error:
                failed[entrant.digest] = f"it does not run together with the others: {error}"
        events.line("opening the fallback")
        fallback = open_fallback(request, samples)
    held = {each.digest: each.held_bytes for each in request.beside}
    beside = {d: Contender(model=each, held_bytes=held[d]) for d, each in others.items()}
    contest = Contest(
        engines={request.manifest.key.digest(): engine, **beside},
        eager=eager,
        fallback=fallback.contender,
        platform=request.device.parsed_generation.platform,
    )
    limits = BenchmarkLimits(
        seconds_per_side=request.benchmark_s, min_iterations=request.benchmark_iterations
    )
    with alone(request.cache_dir, events), events.stage(Stage.BENCHMARK):
        words = f"{len(contest.engines)} engines " if beside else ""
        events.line(f"timing {words}beside eager; the fallback: {fallback.words}")
        shapes = tuple(benchmark(contest, each, request.recipe, limits) for each in samples)
        for other in others.values():
            other.close()
    sides = {"engine": engine.model, "eager": eager.model, "fallback": fallback.engine}
    # A joint run keeps times alone.
    counted = sides if request.is_judged and shapes[0].eager.p50_s < _SLOWEST_S else {}
    # Behind all timings: a profiler may slow what follows.
    with beside_others(request.cache_dir, events):
        found = {n: m and _kernels(m, samples[0], contest.platform) for n, m in counted.items()}
    fallback.close()
    kernels = {name: each for name, each in found.items() if each}
    return JointResult(shapes=shapes, failed=failed, fallback=fallback.words, kernels=kernels)


def _kernels(model: Model, sample: Sample, platform: Platform) -> tuple[int, str] | None:
    """How many a call runs, and what counts them; None where nothing does."""
    engine = model if platform is Platform.CPU and isinstance(model, GuardedEngine) else None
    try:
        from compiler_worker.profiling.timing import num_kernels

        if engine and (num := engine.num_kernels(sample.inputs)):
            return num, engine.name
        num = num_kernels(lambda: model.run(sample.inputs), platform.value)
    except Exception:  # of any library: a proof does without
        logger.info("kernels of %s are not counted", type(model).__name__, exc_info=True)
        return None
    return (num, "PyTorch" if platform is Platform.CPU else "CUPTI") if num else None


def _loaded(
    entrant: JointEntrant, request: ProofRequest, samples: Sequence[Sample], events: Events
) -> Engine:
    """The engine, warm at each shape."""
    key = entrant.manifest.key
    events.line(f"loading {key.kind} {key.precision} {entrant.digest[:12]}")
    own = {"manifest": entrant.manifest, "engine_dir": entrant.engine_dir}
    findings: list[str] = []
    engine = load_engine(request.model_copy(update=own), findings)
    for sample in samples:
        engine.run(sample.inputs)
    if findings:
        logger.info("remarks on loading: %s", "; ".join(findings))
    return engine
