"""Whether a master computes what the file computes that it was made of.

Proofs know the master alone: what folding or another pass made of the file would be in the
reference, in its witness and in every engine.
"""

from collections.abc import Sequence
from pathlib import Path

from compiler_worker.inputs.sample_sizes import edge_sizes, timed_sizes
from compiler_worker.inputs.sampling import Sample, draw_sample
from compiler_worker.master.zipmaps import Classes
from compiler_worker.measures.comparison import compare_output, has_numbers
from compiler_worker.measures.default_tolerances import DEFAULT_TOLERANCES
from compiler_worker.model_checks.served_master import ServedMaster
from compiler_worker.proof.claim import sizes_text
from compiler_worker.references.models import OrtModel
from services.contracts.errors import InvalidModelError, ProofError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord

# What is folded is computed by another library: it rounds otherwise, and means the same.
_ALLOWED = DEFAULT_TOLERANCES[Precision.INT8_WEIGHT_ONLY]


def check_file(path: Path, served: ServedMaster, classes: Classes | None = None) -> None:
    """Run both in ONNX Runtime at the smallest and the usual sizes of the first bucket.

    A file that ONNX Runtime does not run is left to the proof.

    Args:
        path: the owner's ONNX file.
        served: the master that was made of it.
        classes: by output that is maps in the file, the columns of the master's table.

    Raises:
        InvalidModelError: an output differs by far more than rounding.
    """
    master = served.record
    bucket = served.buckets[0]
    sizes = [edge_sizes(bucket)[0], timed_sizes(bucket)[0]]
    samples = [draw_sample(master, served.recipe, bucket, each) for each in sizes]
    try:
        wanted = _answers(path, master, samples, classes)
        found = _answers(served.path, master, samples)
    except ProofError:
        return
    for spec in master.outputs:
        for sample, right, own in zip(samples, wanted, found, strict=True):
            result = compare_output(spec, served.recipe, sample.inputs, own, right, _ALLOWED)
            # Of many integers a few are ties.
            is_tie = 0 < 2 * result.num_differing <= right[spec.name].size
            says_nothing = is_tie or not has_numbers({spec.name: right[spec.name]})
            if result.fault and not says_nothing:
                raise InvalidModelError(
                    f"{path}: the master that was made of it computes something else: output "
                    f"'{spec.name}' at {sizes_text(sample.sizes)}: {result.fault}"
                )


def _answers(
    path: Path, master: MasterRecord, samples: Sequence[Sample], classes: Classes | None = None
) -> list[dict[str, Array]]:
    # The model goes with this call: a large one is in memory once.
    model = OrtModel.open(path, master, classes=classes)
    return [model.run(sample.inputs) for sample in samples]
