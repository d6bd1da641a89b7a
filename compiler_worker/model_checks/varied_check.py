"""Whether drawn inputs change the answers at all: found when a model is added."""

from collections.abc import Iterator, Sequence

from compiler_worker.inputs.sample_sizes import timed_sizes
from compiler_worker.inputs.sampling import DEFAULT_SEED, draw_sample, usual_variant
from compiler_worker.model_checks.served_master import ServedMaster, has_room
from compiler_worker.proof.power import Kept
from compiler_worker.proof.same_answers import alike_outputs, constant_precisions, ways_to_vary
from compiler_worker.references.models import OrtModel
from services.contracts.errors import ProofError
from services.contracts.hardware.kinds import Precision

# Of a model whose answers vary the first are enough.
_NUM_RUNS = 8


def check_varied(served: ServedMaster) -> Iterator[str]:
    """A sentence for each output that is the same for all that is drawn at the usual sizes.

    What ONNX Runtime does not run, or not in the memory of this host, is left to the proof.
    """
    master = served.record
    recipe = served.recipe
    bucket = served.buckets[0]
    if not master.inputs or not has_room(served.path):
        return
    kept: list[Kept] = []
    alike: Sequence[str] = ()
    try:
        model = OrtModel.open(served.path, master)
        sizes = timed_sizes(bucket)[0]
        variant = usual_variant(master, recipe, sizes)
        for number in range(_NUM_RUNS):
            seed = DEFAULT_SEED + number
            sample = draw_sample(master, recipe, bucket, sizes, variant=variant, seed=seed)
            kept.append(Kept(sample=sample, wanted=model.run(sample.inputs)))
            alike = alike_outputs(master, recipe, kept)
            if number and not alike:
                return
    except ProofError:
        return
    accepted = constant_precisions(recipe)
    then = "proofs show little of it"
    if len(alike) == len(master.outputs) and len(accepted) < len(Precision):
        others = f" but those in {', '.join(accepted)}" if accepted else ""
        then = f"every engine{others} would be refused"
    for name in alike:
        yield (
            f"output '{name}' is the same in {_NUM_RUNS} runs of drawn inputs, so {then}: give "
            f"samples (--samples FILE){ways_to_vary(master)} whose answers differ"
        )
