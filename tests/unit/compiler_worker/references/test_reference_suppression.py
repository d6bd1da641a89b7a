"""NonMaxSuppression beside ONNX's own, which compares box by box."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from compiler_worker.references.reference_suppression import NonMaxSuppression
from services.contracts.kserve.tensors import Array

NAMES = ["boxes", "scores", "most", "overlap", "threshold"]


def model_of(num_inputs: int, center_point_box: int) -> onnx.ModelProto:
    """One node with so many of its inputs."""
    kinds = [TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64, *[TensorProto.FLOAT] * 2]
    names = NAMES[:num_inputs]
    inputs = [helper.make_tensor_value_info(n, k, None) for n, k in zip(names, kinds, strict=False)]
    output = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    node = helper.make_node("NonMaxSuppression", names, ["y"], center_point_box=center_point_box)
    graph = helper.make_graph([node], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)])


def drawn(seed: int) -> dict[str, Array]:
    """Boxes of two images, empty ones and equal scores among them."""
    generator = np.random.default_rng(seed)
    boxes = generator.integers(0, 8, (2, 30, 4)).astype(np.float32)
    scores = generator.integers(0, 6, (2, 3, 30)).astype(np.float32) / 5
    most = np.array([int(generator.integers(0, 8))])
    return {
        "boxes": boxes,
        "scores": scores,
        "most": most,
        "overlap": np.array([generator.choice([0.0, 0.3, 1.0])], np.float32),
        "threshold": np.array([0.2], np.float32),
    }


@pytest.mark.parametrize("center_point_box", [0, 1])
@pytest.mark.parametrize("num_inputs", [3, 4, 5])
def test_it_is_onnx_s_own(num_inputs: int, center_point_box: int) -> None:
    model = model_of(num_inputs, center_point_box)
    own = ReferenceEvaluator(model)
    quick = ReferenceEvaluator(model, new_ops=[NonMaxSuppression])
    num_selected = 0
    for seed in range(20):
        inputs = dict(list(drawn(seed).items())[:num_inputs])
        if num_inputs == 3:
            # ONNX's own takes no node without a threshold of overlap.
            inputs_own = inputs | {"overlap": np.array([0], np.float32)}
            own = ReferenceEvaluator(model_of(4, center_point_box))
            (wanted,) = own.run(None, inputs_own)
        else:
            (wanted,) = own.run(None, inputs)
        (found,) = quick.run(None, inputs)
        np.testing.assert_array_equal(found, np.reshape(wanted, (-1, 3)))
        num_selected += len(found)
    assert num_selected


def test_no_number_selects_nothing() -> None:
    (found,) = ReferenceEvaluator(model_of(2, 0), new_ops=[NonMaxSuppression]).run(
        None, {"boxes": np.ones((1, 4, 4), np.float32), "scores": np.ones((1, 1, 4), np.float32)}
    )
    assert found.shape == (0, 3)
