"""Documents by how well they answer a query, as Cohere and text-embeddings-inference have it."""

import numpy as np

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensors import Array
from services.gateway.http.answers import HttpAnswer, json_bytes
from services.gateway.http.fields import Document, field, optional
from services.gateway.http.text_rows import Ask, check_num_rows, config_of, infer_rows, output_of


async def rerank(document: Document, ask: Ask) -> HttpAnswer:
    """The documents' places by falling score, each the logistic function of the model's logit.

    Args:
        document: of a request to `/v1/rerank`, of Cohere's form and Jina's.
        ask: calls an RPC by its name.

    Raises:
        InvalidRequestError: the request is malformed, or the model gives no score for pairs.
    """
    texts = _texts(document.get("documents"))
    most = optional(document, "top_n", len(texts))
    if most < 1:
        raise InvalidRequestError(f"'top_n': expected 1 or more, got {most}")
    with_texts = optional(document, "return_documents", False)
    logits_B, num_tokens = await _logits(document, texts, "documents", ask)
    scores_B = _logistic(logits_B)
    results = [
        {"index": place, "relevance_score": float(scores_B[place])}
        | ({"document": {"text": texts[place]}} if with_texts else {})
        for place in _places(logits_B)[:most]
    ]
    usage = {"total_tokens": num_tokens}
    answer = {"model": document["model"], "results": results, "usage": usage}
    return HttpAnswer(json_bytes(answer))


async def rerank_texts(document: Document, ask: Ask) -> HttpAnswer:
    """The same in the form of text-embeddings-inference: `texts`, and a list of scores.

    Args:
        document: of the request, with the `model` that its path names.
        ask: calls an RPC by its name.

    Raises:
        InvalidRequestError: as `rerank`.
    """
    texts: list[str] = field(document, "texts", list)
    check_num_rows(texts, "texts")
    if not (texts and all(type(each) is str for each in texts)):
        raise InvalidRequestError("'texts': expected a list of texts")
    with_texts = optional(document, "return_text", False)
    is_raw = optional(document, "raw_scores", False)
    logits_B, _ = await _logits(document, texts, "texts", ask)
    scores_B = logits_B if is_raw else _logistic(logits_B)
    results = [
        {"index": place, "score": float(scores_B[place])}
        | ({"text": texts[place]} if with_texts else {})
        for place in _places(logits_B)
    ]
    return HttpAnswer(json_bytes(results))


async def _logits(document: Document, texts: list[str], name: str, ask: Ask) -> tuple[Array, int]:
    """The model's number for each pair [B], and how many tokens they were."""
    model = field(document, "model", str)
    query = field(document, "query", str)
    config = await config_of(model, ask)
    output, size = output_of(config)
    if size != 1:
        raise InvalidRequestError(
            f"model '{model}' gives {size} numbers for a pair, expected the one of a reranker"
        )
    answers = await infer_rows(config, [(query, text) for text in texts], output, ask)
    logits_B = np.concatenate([each.reshape(-1) for each, _ in answers]).astype(np.float64)
    if not np.isfinite(logits_B).all():
        raise InvalidRequestError(f"model '{model}' gives NaN or infinity for one of the {name}")
    return logits_B, sum(num for _, num in answers)


def _logistic(logits_B: Array) -> Array:
    scores_B: Array = 1 / (1 + np.exp(-logits_B))
    return scores_B


def _places(logits_B: Array) -> list[int]:
    """Best first, equals in the order in which they came; scores near 1 may round to one."""
    places: list[int] = np.argsort(-logits_B, kind="stable").tolist()
    return places


def _texts(given: object) -> list[str]:
    """Of strings, or of documents that have a text."""
    if type(given) is list and given:
        check_num_rows(given, "documents")
        found = [each.get("text") if type(each) is dict else each for each in given]
        texts = [each for each in found if type(each) is str]
        if len(texts) == len(given):
            return texts
    raise InvalidRequestError("'documents': expected a list of texts, or of {\"text\": ...}")
