"""Votes of trees in ONNX's reference implementation: in the inputs' type, as in ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from compiler_worker.references.reference_ops import OPS
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensors import Array
from tests.conformance.trees import classifier, forest
from tests.faults.judged import Subject

# Of rows of ten signs a quarter have five of each: half of the votes.
SIGNS = np.random.default_rng(0).choice([-1.0, 1.0], (400, 10))


def answers(model: onnx.ModelProto, x: Array) -> tuple[list[Array], list[Array]]:
    """Of the reference implementation, and of ONNX Runtime."""
    ours = ReferenceEvaluator(model, new_ops=list(OPS)).run(None, {"x": x})
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    return list(ours), wanted


def assert_same(found: list[Array], wanted: list[Array]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("has_doubles", [False, True])
def test_votes_of_doubles_are_added_up_in_doubles(has_doubles: bool) -> None:
    found, wanted = answers(forest(has_doubles=has_doubles), SIGNS)
    assert_same(found, wanted)
    is_half = (SIGNS > 0).sum(axis=1) == 5
    assert is_half.sum() > 50
    # A tenth in float32 is a little more, and five of them are more than half.
    assert set(found[0][is_half]) == {0 if has_doubles else 1}


def with_attributes(model: onnx.ModelProto, **attributes: object) -> onnx.ModelProto:
    """The same with other attributes of its last node; None removes one."""
    trees = model.graph.node[-1]
    kept = [each for each in trees.attribute if each.name not in attributes]
    given = {name: value for name, value in attributes.items() if value is not None}
    del trees.attribute[:]
    trees.attribute.extend(kept)
    trees.attribute.extend(onnx.helper.make_attribute(*each) for each in given.items())
    return model


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_scores_are_made_of_votes_as_the_node_says(transform: str) -> None:
    model = with_attributes(classifier(), post_transform=transform)
    assert_same(*answers(model, np.abs(SIGNS[:, :4]).astype(np.float32)))


def test_of_two_classes_the_first_is_what_the_second_is_not() -> None:
    weights = {"class_weights": [-0.1, 0.1] * 10, "post_transform": "LOGISTIC"}
    assert_same(*answers(with_attributes(forest(has_doubles=False), **weights), SIGNS))


def test_labels_may_be_strings() -> None:
    labels = {"classlabels_int64s": None, "classlabels_strings": ["no", "yes"]}
    model = with_attributes(forest(has_doubles=True), **labels)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING
    found, wanted = answers(model, SIGNS)
    assert found[0].tolist() == wanted[0].tolist()


def test_votes_of_integer_features_are_no_integers() -> None:
    model = classifier()
    # Without the square root before its trees.
    del model.graph.node[0]
    model.graph.node[0].input[0] = "x"
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    assert_same(*answers(model, np.random.default_rng(0).integers(0, 2, (16, 4))))


@pytest.mark.parametrize("has_doubles", [False, True])
def test_a_forest_of_doubles_is_proven(has_doubles: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(forest(has_doubles=has_doubles), path)
    subject = Subject.opened(tmp_path, path, EngineKind.ONNXRUNTIME)
    given = {"x": SIGNS[:64]}
    verdict = subject.judged(subject.engine, precision=Precision.FP32, samples=given)
    assert verdict.reason == ""
