"""The inside of a joint run: engines of one master loaded beside each other, and timed in turns."""

import logging
from collections.abc import Mapping, Sequence

from compiler_worker.children.child import Events
from compiler_worker.children.requests import (
    JointEntrant,
    JointRequest,
    JointResult,
    ProofRequest,
    Stage,
)
from compiler_worker.inputs.sampling import Sample, timed_samples
from compiler_worker.proof.engine_loading import load_engine, prepare_torch
from compiler_worker.references.models import FxModel, Model, OrtModel
from compiler_worker.references.reference import open_eager
from compiler_worker.timing.benchmark import BenchmarkLimits, Contender, Contest, benchmark
from compiler_worker.timing.fallback import open_fallback
from compiler_worker.timing.host_turns import alone, beside_others
from services.contracts.errors import EngineError, InvalidRequestError
from services.contracts.hardware.facts import Platform
from services.engines.base import Engine

logger = logging.getLogger(__name__)


def time_one(request: JointRequest, events: Events) -> JointResult:
    """Time what a request names.

    Raises:
        EngineError: none of the engines runs.
        ProofError: nothing on this machine runs the master itself.
    """
    prepare_torch(request.proof)
    with beside_others(request.proof.cache_dir, events), events.stage(Stage.BENCHMARK):
        eager = Contender(model=_opened_eager(request.proof), held_bytes=request.eager_held_bytes)
    return time_together(request.proof, request.entrants, {}, eager, events)


def time_together(
    request: ProofRequest,
    entrants: Sequence[JointEntrant],
    loaded: Mapping[str, Contender],
    eager: Contender,
    events: Events,
) -> JointResult:
    """Time engines beside eager and the fallback, at each shape.

    Args:
        request: what all engines have in common is read of it.
        entrants: engines that are loaded for it.
        loaded: others, by digest.
        eager: loaded too.
        events: told what is done.

    Raises:
        EngineError: none of the engines runs.
    """
    samples = timed_samples(request.master, request.recipe, request.manifest.buckets)
    with beside_others(request.cache_dir, events), events.stage(Stage.BENCHMARK):
        found = {each.digest: _loaded(each, request, samples, events) for each in entrants}
        engines = {digest: each for digest, each in found.items() if not isinstance(each, str)}
        failed = {digest: each for digest, each in found.items() if isinstance(each, str)}
        if not engines and not loaded:
            raise EngineError(f"nothing to compare: {'; '.join(failed.values())}")
        events.line("opening the fallback")
        fallback = open_fallback(request, samples)
    held = {each.digest: each.held_bytes for each in entrants}
    others = {d: Contender(model=each, held_bytes=held[d]) for d, each in engines.items()}
    contest = Contest(
        engines={**loaded, **others},
        eager=eager,
        fallback=fallback.contender,
        platform=request.device.parsed_generation.platform,
    )
    limits = BenchmarkLimits(
        seconds_per_side=request.benchmark_s, min_iterations=request.benchmark_iterations
    )
    with alone(request.cache_dir, events), events.stage(Stage.BENCHMARK):
        events.line(f"timing {len(contest.engines)} beside eager; the fallback: {fallback.words}")
        shapes = tuple(benchmark(contest, each, request.recipe, limits) for each in samples)
        fallback.close()
        for engine in engines.values():
            engine.close()
    return JointResult(shapes=shapes, failed=failed, fallback=fallback.words)


def _loaded(
    entrant: JointEntrant, request: ProofRequest, samples: Sequence[Sample], events: Events
) -> Engine | str:
    """The engine, warm at each shape, or why it does not run."""
    key = entrant.manifest.key
    events.line(f"loading {key.kind} {key.precision} {entrant.digest[:12]}")
    own = {"manifest": entrant.manifest, "engine_dir": entrant.engine_dir}
    findings: list[str] = []
    try:
        engine = load_engine(request.model_copy(update=own), findings)
        for sample in samples:
            engine.run(sample.inputs)
    except (EngineError, InvalidRequestError) as error:
        return f"it does not run beside the others: {error}"
    if findings:
        logger.info("remarks on loading: %s", "; ".join(findings))
    return engine


def _opened_eager(asked: ProofRequest) -> Model:
    is_cuda = asked.device.parsed_generation.platform is Platform.CUDA
    eager = open_eager(asked.master_path, asked.master, "cuda" if is_cuda else "cpu")
    if isinstance(eager, FxModel):
        return eager
    # What the importer cannot take: proofs are timed beside this too.
    return OrtModel.open(asked.master_path, asked.master, num_threads=asked.num_threads)
