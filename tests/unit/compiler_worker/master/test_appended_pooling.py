"""Pooling as nodes of a master: equal to numpy's, whatever pads the rows."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from compiler_worker.master.appended_pooling import with_pooling
from compiler_worker.master.opened import OpenedMaster, open_master
from compiler_worker.master.source import OnnxFile
from services.contracts.errors import InvalidModelError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.pooling_choice import Pooling
from tests.conformance.tiny_model import tiny_model

IDS = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
NEW_NAMES = {"ids": "input_ids", "mask": "attention_mask"}


def encoder(outputs: tuple[str, ...] = ("hidden", "pooled")) -> onnx.ModelProto:
    """The tiny model with the hub's names; an initialiser of it is called `embedding`."""
    model = tiny_model()
    for node in model.graph.node:
        node.input[:] = [NEW_NAMES.get(name, name) for name in node.input]
    for value in model.graph.input:
        value.name = NEW_NAMES[value.name]
    kept = [value for value in model.graph.output if value.name in outputs]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    return model


def opened(model: onnx.ModelProto, folder: Path) -> OpenedMaster:
    onnx.save(model, folder / "m.onnx")
    return open_master(OnnxFile(path=folder / "m.onnx"), folder / "opened", lambda _: None)


def run(master: OpenedMaster) -> list[Array]:
    session = onnxruntime.InferenceSession(str(master.files["model.onnx"]))
    feed = {"input_ids": IDS, "attention_mask": MASK}
    found: list[Array] = session.run(None, {name: feed[name] for name in feed})
    return found


@pytest.mark.parametrize("has_length_1", [False, True])
@pytest.mark.parametrize("pooling", list(Pooling))
def test_the_only_output_is_the_embedding(
    tmp_path: Path, pooling: Pooling, has_length_1: bool
) -> None:
    master = opened(encoder(), tmp_path)
    hidden = run(master)[0]
    wanted = {
        Pooling.MEAN: (hidden * MASK[..., None]).sum(1) / MASK.sum(1, keepdims=True),
        Pooling.CLS: hidden[:, 0],
        Pooling.LAST: hidden[np.arange(3), MASK.sum(1) - 1],
    }[pooling]
    if has_length_1:
        wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    pooled = with_pooling(master, pooling, tmp_path / "work", has_length_1=has_length_1)
    assert pooled.outputs == (TensorSpec(name="embedding", datatype="FP32", shape=("batch", 16)),)
    assert pooled.inputs == master.inputs
    assert pooled.digest != master.digest
    (found,) = run(pooled)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_the_same_pooling_gives_the_same_master(tmp_path: Path) -> None:
    master = opened(encoder(), tmp_path)
    digests = {
        with_pooling(master, Pooling.MEAN, tmp_path / name, has_length_1=True).digest
        for name in ("one", "two")
    }
    assert len(digests) == 1


def test_what_has_no_token_vectors_is_refused(tmp_path: Path) -> None:
    master = opened(encoder(("pooled",)), tmp_path)
    with pytest.raises(InvalidModelError, match=r"the model has pooled \['batch', 16\]: where one"):
        with_pooling(master, Pooling.CLS, tmp_path / "work", has_length_1=False)


def test_a_mean_needs_a_mask_and_the_first_token_none(tmp_path: Path) -> None:
    model = encoder(("hidden",))
    for node in model.graph.node:
        node.input[:] = ["every" if name == "attention_mask" else name for name in node.input]
    del model.graph.input[1]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 4), np.int64), "every"))
    master = opened(model, tmp_path)
    with pytest.raises(InvalidModelError, match="pooling mean needs an input attention_mask"):
        with_pooling(master, Pooling.MEAN, tmp_path / "mean", has_length_1=False)
    found = with_pooling(master, Pooling.CLS, tmp_path / "cls", has_length_1=False)
    assert [spec.name for spec in found.inputs] == ["input_ids"]
