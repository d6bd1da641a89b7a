"""The inside of a replay: the engine, on the one sample that it failed at."""

from collections.abc import Mapping

from compiler_worker.children.child import Events
from compiler_worker.children.requests import ReplayRequest, ReplayResult, Stage
from compiler_worker.inputs.sampling import DEFAULT_SEED, SampleVariant, draw_sample
from compiler_worker.measures.comparison import compare_output
from compiler_worker.measures.distance import INFINITELY_FAR
from compiler_worker.proof.engine_loading import load_engine, prepare_torch
from compiler_worker.proof.proof_child import drawn_recipe
from compiler_worker.proof.worst_sample import read_sample_arrays
from compiler_worker.references.models import Model
from compiler_worker.references.reference import open_eager, open_reference
from services.contracts.errors import EngineError, InvalidRequestError, ProofError
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import OutputCheck

_Arrays = Mapping[str, Array]


def replay_one(request: ReplayRequest, events: Events) -> ReplayResult:
    """Run an engine on the sample.

    Raises:
        EngineIncompatibleError: it is for another device or library.
        ProofError: the reference is needed again and cannot be computed.
    """
    prepare_torch(request.proof)
    with events.stage(Stage.PROVE):
        inputs = _inputs(request)
        engine = load_engine(request.proof, [])
        checks = _checks(request, engine, inputs)
        engine.close()
    return ReplayResult(checks=checks, is_drawn_again=request.arrays_path is None)


def _checks(
    request: ReplayRequest, engine: Model, inputs: dict[str, Array]
) -> tuple[OutputCheck, ...]:
    try:
        found = engine.run(inputs)
    except (EngineError, InvalidRequestError) as error:
        return (_check(request, "", vars(INFINITELY_FAR), str(error)),)
    return _compared(request, inputs, found, wanted_outputs(request, inputs))


def _inputs(request: ReplayRequest) -> dict[str, Array]:
    if request.arrays_path is not None:
        return read_sample_arrays(request.arrays_path, "input")
    failed = request.failed
    proof = request.proof
    bucket = next(each for each in proof.manifest.buckets if each.label == failed.bucket)
    variant = SampleVariant(failed.variant)
    if variant is SampleVariant.TRAFFIC:
        raise ProofError(f"the sample was run {failed.seed} of those of requests: none is kept")
    if variant is SampleVariant.GIVEN:
        raise ProofError(
            f"the sample was run {failed.seed} of the model's own, and too large to be kept"
        )
    seed = DEFAULT_SEED if failed.seed is None else failed.seed
    return draw_sample(
        proof.master, drawn_recipe(proof), bucket, failed.sizes, variant=variant, seed=seed
    ).inputs


def wanted_outputs(request: ReplayRequest, inputs: _Arrays) -> _Arrays:
    """The reference's outputs of any shape; an engine that gave no answer is compared with none."""
    kept = read_sample_arrays(request.arrays_path, "wanted") if request.arrays_path else {}
    if kept:
        return kept
    proof = request.proof
    # On the CPU on any machine: only the float64 reference is run, which is never elsewhere.
    eager = open_eager(proof.master_path, proof.master, "cpu")
    reference = open_reference(
        proof.master_path,
        proof.master,
        eager,
        proof.cache_dir,
        kind=proof.manifest.key.kind,
        num_threads=proof.num_threads,
    )
    return reference.model.run(inputs)


def _compared(
    request: ReplayRequest, inputs: _Arrays, found: _Arrays, wanted: _Arrays
) -> tuple[OutputCheck, ...]:
    checks = []
    for spec in request.proof.master.outputs:
        allowed = request.failed.allowed[spec.name]
        typical = request.failed.typical.get(spec.name, 0.0)
        result = compare_output(spec, request.proof.recipe, inputs, found, wanted, allowed, typical)
        checks.append(_check(request, spec.name, vars(result.distance), result.fault))
    return tuple(checks)


def _check(
    request: ReplayRequest, output: str, distance: Mapping[str, float], fault: str
) -> OutputCheck:
    failed = request.failed
    return OutputCheck(
        bucket=failed.bucket, sizes=failed.sizes, output=output, fault=fault, **distance
    )
