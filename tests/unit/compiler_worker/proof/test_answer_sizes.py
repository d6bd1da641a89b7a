"""Answers near zero: what is wrong of them by as little as of the others is no contradiction."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compiler_worker.inputs.sampling import Sample, SampleVariant
from compiler_worker.measures.answer_sizes import typical_sizes
from compiler_worker.references.agreement import disagreement, eager_errors
from compiler_worker.references.models import Model
from compiler_worker.references.reference import Reference
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Recipe

LOGIT = TensorSpec(name="logit", datatype="FP32", shape=("batch", 1))
MASTER = MasterRecord(
    digest="a" * 64, files={}, inputs=(), outputs=(LOGIT,), opset=20, num_parameters=0
)
LOGITS = np.array([[0.9], [1e-4], [-1.1]])


@dataclass(frozen=True)
class Answering:
    """A model that answers with numbers that it was given."""

    logits: Array

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"logit": self.logits}


def sample(variant: SampleVariant = SampleVariant.FULL) -> Sample:
    return Sample(bucket="b", sizes={"batch": 3}, variant=variant, inputs={})


def reference(off: float) -> Reference:
    """Whose witness and eager run lie so far beside it."""
    beside: Model = Answering((LOGITS + off).astype(np.float32))
    return Reference(
        name="r", model=Answering(LOGITS), witness=beside, baseline=beside, eager_outputs=beside
    )


def test_an_answer_near_zero_is_measured_by_the_size_of_others() -> None:
    found = reference(off=5e-7)
    sizes = typical_sizes(found.model, MASTER, Recipe(), [sample()])
    np.testing.assert_allclose(sizes["logit"], np.sqrt((LOGITS**2).mean()))
    errors = eager_errors(found, MASTER, Recipe(), [sample()], sizes)
    assert errors["logit"].eager.rel_l2 < 1e-6
    assert disagreement(found, MASTER, Recipe(), [sample()], {}, sizes) is None
    far = reference(off=1e-2)
    assert disagreement(far, MASTER, Recipe(), [sample()], {}, sizes) is not None


def test_large_draws_have_no_usual_size() -> None:
    model = Answering(LOGITS)
    assert typical_sizes(model, MASTER, Recipe(), [sample(SampleVariant.LARGE)]) == {}


def test_a_few_huge_amounts_hardly_move_the_usual_one() -> None:
    amounts = np.ones((100, 1))
    amounts[0] = 1e4
    sizes = typical_sizes(Answering(amounts), MASTER, Recipe(), [sample()])
    np.testing.assert_allclose(sizes["logit"], 1.99**2)
