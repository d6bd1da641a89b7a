"""`/v1/classify`: texts to a model, its numbers as scores of labels."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.byte_strings import strings_from_bytes
from services.gateway.http.classifying import classify
from services.gateway.http.embeddings import embed
from services.pb import open_inference_v2_pb2 as pb

LABELS = ("none", "few", "many")


class Classifier:
    """Its numbers are 0, how many letters a text has, and twice that less 3."""

    def __init__(self, *, scores: str = "softmax", labels: tuple[str, ...] = LABELS) -> None:
        self.config = pb.ModelConfig(
            name="m",
            max_batch_size=2,
            input=[pb.ModelInput(name="text", data_type=pb.TYPE_STRING, dims=[1])],
            output=[pb.ModelOutput(name="logits", data_type=pb.TYPE_FP32, dims=[3])],
        )
        if labels:
            self.config.parameters["labels"].string_value = json.dumps(labels)
        self.config.parameters["label_scores"].string_value = scores
        self.scale = 1.0

    async def __call__(self, rpc: str, body: Any) -> Any:
        if rpc == "ModelConfig":
            return SimpleNamespace(config=self.config)
        request = pb.ModelInferRequest.FromString(body)
        (tensor,) = request.inputs
        texts = strings_from_bytes(request.raw_input_contents[0], tensor.shape)
        lengths = [sum(map(len, row)) for row in texts.tolist()]
        logits = np.array([[0, n, 2 * n - 3] for n in lengths], np.float32) * self.scale
        response = pb.ModelInferResponse(model_name="m", model_version="1")
        response.outputs.add(name="logits", datatype="FP32", shape=logits.shape)
        response.raw_output_contents.append(logits.tobytes())
        response.parameters["num_tokens"].int64_param = 4
        return response.SerializeToString()


async def answer(texts: object, model: Classifier) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await classify({"model": "m", "input": texts}, model)).body)
    return found


async def test_its_numbers_are_no_embedding() -> None:
    with pytest.raises(InvalidRequestError, match="model 'm' classifies.*/v1/classify"):
        await embed({"model": "m", "input": "ab"}, Classifier())


async def test_texts_get_the_label_that_is_most_probable() -> None:
    found = await answer(["ab", "abcd", ""], Classifier())
    assert [each["label"] for each in found["data"]] == ["few", "many", "none"]
    assert [each["index"] for each in found["data"]] == [0, 1, 2]
    for each, length in zip(found["data"], (2, 4, 0), strict=True):
        grown = np.exp([0, length, 2 * length - 3])
        np.testing.assert_allclose(each["probs"], grown / grown.sum())
        assert each["score"] == max(each["probs"])
        assert each["num_classes"] == 3
    assert found["labels"] == list(LABELS)
    assert found["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert (found["object"], found["model"]) == ("list", "m")


async def test_numbers_of_any_size_have_scores() -> None:
    model = Classifier()
    model.scale = 1e30
    (found,) = (await answer("abcd", model))["data"]
    assert (found["label"], found["probs"]) == ("many", [0.0, 0.0, 1.0])
    model.scale = -1e30
    model.config.parameters["label_scores"].string_value = "sigmoid"
    (found,) = (await answer("abcd", model))["data"]
    assert (found["label"], found["probs"]) == ("none", [0.5, 0.0, 0.0])


@pytest.mark.parametrize(
    ("scores", "probs"),
    [("sigmoid", 1 / (1 + np.exp([0.0, -2.0, -1.0]))), ("none", [0.0, 2.0, 1.0])],
)
async def test_several_labels_at_once_and_scores_of_the_models_own(
    scores: str, probs: Sequence[float]
) -> None:
    (found,) = (await answer("ab", Classifier(scores=scores)))["data"]
    assert found["label"] == "few"
    np.testing.assert_allclose(found["probs"], probs)


async def test_pairs_for_a_model_that_takes_them() -> None:
    model = Classifier()
    model.config.input[0].dims[:] = [2]
    found = await answer([["a", "b"], ["ab", "cd"]], model)
    assert [each["label"] for each in found["data"]] == ["few", "many"]
    with pytest.raises(InvalidRequestError, match="accepts pairs of texts"):
        await answer(["a", "b"], model)


@pytest.mark.parametrize(
    ("texts", "model", "words"),
    [
        ("a", Classifier(labels=()), "has 0 labels for 3 numbers of output 'logits'"),
        ("a", Classifier(labels=("a", "b")), "has 2 labels for 3 numbers"),
        ([], Classifier(), "'input': expected a text, a list of texts or of pairs"),
        ([["a", "b", "c"]], Classifier(), "'input': expected a text"),
        (["a"] * 2049, Classifier(), "'input': 2049 of them"),
    ],
)
async def test_what_cannot_be_classified(texts: object, model: Classifier, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        await answer(texts, model)


async def test_what_is_no_number_has_no_score() -> None:
    model = Classifier()
    model.scale = float("nan")
    with pytest.raises(InvalidRequestError, match="gives NaN or infinity"):
        await answer("a", model)
