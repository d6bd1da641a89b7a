"""The reference with one output spoilt: whether a recipe's tasks would refuse it."""

from collections.abc import Mapping

from compiler_worker.inputs.sampling import Sample, SampleVariant
from compiler_worker.proof.output_judge import OutputJudge
from compiler_worker.proof.power import Kept, spoilt
from compiler_worker.proof.sabotages import Sabotage
from compiler_worker.references.models import Model
from services.contracts.kserve.tensors import Array


class SpoiltModel:
    """Answers as the reference does, but for one output; arrays are of any shape."""

    def __init__(self, reference: Model, judge: OutputJudge, sabotage: Sabotage) -> None:
        """Answer with one output spoilt.

        Args:
            reference: what computes all outputs.
            judge: of the output to spoil, its moments known from the reference's answers.
            sabotage: how the output is spoilt.
        """
        self._reference = reference
        self._judge = judge
        self._sabotage = sabotage
        self._num_runs = 0

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs; raises ProofError as the reference does."""
        wanted = self._reference.run(inputs)
        name = self._judge.bounds.spec.name
        sample = Sample(bucket="", sizes={}, variant=SampleVariant.GIVEN, inputs=dict(inputs))
        self._num_runs += 1
        kept = Kept(sample=sample, wanted=wanted)
        array = spoilt(self._sabotage, self._judge, kept, wanted[name].size, self._num_runs)
        return {**wanted, name: array}
