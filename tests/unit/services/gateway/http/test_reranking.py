"""Reranking: pairs to a model, documents by its logits."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.byte_strings import strings_from_bytes
from services.gateway.http.reranking import rerank, rerank_texts
from services.pb import open_inference_v2_pb2 as pb


class Reranker:
    """Its logit is how much longer the document is than the query."""

    def __init__(self, *, text_dims: int = 2, size: int = 1, scale: float = 1.0) -> None:
        self.config = pb.ModelConfig(
            name="m",
            max_batch_size=2,
            input=[pb.ModelInput(name="text", data_type=pb.TYPE_STRING, dims=[text_dims])],
            output=[pb.ModelOutput(name="logits", data_type=pb.TYPE_FP32, dims=[size])],
        )
        self.scale = scale

    async def __call__(self, rpc: str, body: Any) -> Any:
        if rpc == "ModelConfig":
            return SimpleNamespace(config=self.config)
        request = pb.ModelInferRequest.FromString(body)
        (tensor,) = request.inputs
        pairs = strings_from_bytes(request.raw_input_contents[0], tensor.shape)
        logits = np.array([[len(b) - len(a)] for a, b in pairs.tolist()], np.float32) * self.scale
        response = pb.ModelInferResponse(model_name="m", model_version="1")
        response.outputs.add(name="logits", datatype="FP32", shape=logits.shape)
        response.raw_output_contents.append(logits.tobytes())
        response.parameters["num_tokens"].int64_param = 3
        return response.SerializeToString()


REQUEST = {"model": "m", "query": "ab", "documents": ["ab", "abcd", {"text": "a"}, "dcba"]}


async def test_documents_come_by_their_logits_equals_in_their_order() -> None:
    found = json.loads((await rerank(REQUEST, Reranker())).body)
    assert [each["index"] for each in found["results"]] == [1, 3, 0, 2]
    scores = [each["relevance_score"] for each in found["results"]]
    np.testing.assert_allclose(scores, 1 / (1 + np.exp([-2.0, -2.0, 0.0, 1.0])))
    assert found["usage"] == {"total_tokens": 6}
    assert found["model"] == "m"


async def test_a_model_of_single_rows_gets_them_one_by_one() -> None:
    reranker = Reranker()
    # As of an export whose first dimension is fixed.
    reranker.config.max_batch_size = 0
    reranker.config.input[0].dims[:] = [1, 2]
    reranker.config.output[0].dims[:] = [1, 1]
    found = json.loads((await rerank(REQUEST, reranker)).body)
    assert [each["index"] for each in found["results"]] == [1, 3, 0, 2]
    assert found["usage"] == {"total_tokens": 3 * 4}


async def test_the_best_ones_with_their_texts() -> None:
    request = REQUEST | {"top_n": 1, "return_documents": True}
    (found,) = json.loads((await rerank(request, Reranker())).body)["results"]
    assert found["document"] == {"text": "abcd"}
    # Scores that are both 1.0 keep the order of their logits.
    request = REQUEST | {"documents": ["abc", "abcd"]}
    answer = json.loads((await rerank(request, Reranker(scale=1000.0))).body)
    assert [each["index"] for each in answer["results"]] == [1, 0]


@pytest.mark.parametrize(
    ("changed", "model", "words"),
    [
        ({"documents": []}, Reranker(), "expected a list of texts"),
        ({"documents": ["a", 1]}, Reranker(), "expected a list of texts"),
        ({"documents": [{"body": "a"}]}, Reranker(), "expected a list of texts"),
        ({"top_n": 0}, Reranker(), "expected 1 or more"),
        ({"query": None}, Reranker(), "query: expected"),
        ({}, Reranker(text_dims=1), "accepts single texts, not pairs"),
        ({}, Reranker(size=3), "gives 3 numbers for a pair"),
        ({}, Reranker(scale=float("nan")), "gives NaN"),
        ({"documents": ["x"] * 2049}, Reranker(), "expected at most 2048"),
    ],
    ids=range(9),
)
async def test_what_cannot_be_ranked_is_said(
    changed: dict[str, Any], model: Reranker, words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        await rerank(REQUEST | changed, model)


TEXTS = {"model": "m", "query": "ab", "texts": ["ab", "abcd", "a", "dcba"]}


async def test_the_form_of_text_embeddings_inference() -> None:
    found = json.loads((await rerank_texts(TEXTS, Reranker())).body)
    assert [each["index"] for each in found] == [1, 3, 0, 2]
    scores = [each["score"] for each in found]
    np.testing.assert_allclose(scores, 1 / (1 + np.exp([-2.0, -2.0, 0.0, 1.0])))
    asked = TEXTS | {"raw_scores": True, "return_text": True, "truncate": True}
    first, *_, last = json.loads((await rerank_texts(asked, Reranker())).body)
    assert first == {"index": 1, "score": 2.0, "text": "abcd"}
    assert last == {"index": 2, "score": -1.0, "text": "a"}


@pytest.mark.parametrize("texts", [[], ["a", 1], "a", None, ["x"] * 2049])
async def test_what_are_no_texts_is_said(texts: object) -> None:
    with pytest.raises(InvalidRequestError, match="texts'?: "):
        await rerank_texts(TEXTS | {"texts": texts}, Reranker())
