"""`/v1/rerank`, as Cohere and Jina have it: documents by how well they answer a query."""

import numpy as np

from services.contracts.errors import InvalidRequestError
from services.gateway.http.answers import HttpAnswer, json_bytes
from services.gateway.http.fields import Document, field, optional
from services.gateway.http.text_rows import Ask, check_num_rows, config_of, infer_rows, output_of


async def rerank(document: Document, ask: Ask) -> HttpAnswer:
    """The documents' places by falling score, each the logistic function of the model's logit.

    Args:
        document: of the request.
        ask: calls an RPC by its name.

    Raises:
        InvalidRequestError: the request is malformed, or the model gives no score for pairs.
    """
    model = field(document, "model", str)
    query = field(document, "query", str)
    texts = _texts(document.get("documents"))
    check_num_rows(texts, "documents")
    most = optional(document, "top_n", len(texts))
    if most < 1:
        raise InvalidRequestError(f"'top_n': expected 1 or more, got {most}")
    with_texts = optional(document, "return_documents", False)
    config = await config_of(model, ask)
    output, size = output_of(config)
    if size != 1:
        raise InvalidRequestError(
            f"model '{model}' gives {size} numbers for a pair, expected the one of a reranker"
        )
    answers = await infer_rows(config, [(query, text) for text in texts], output, ask)
    logits = np.concatenate([each.reshape(-1) for each, _ in answers]).astype(np.float64)
    if not np.isfinite(logits).all():
        raise InvalidRequestError(f"model '{model}' gives NaN or infinity for one of the documents")
    scores = 1 / (1 + np.exp(-logits))
    # Equals in the order in which they came; of the logits, as scores near 1 may round to one.
    places = np.argsort(-logits, kind="stable")[:most].tolist()
    results = [
        {"index": place, "relevance_score": float(scores[place])}
        | ({"document": {"text": texts[place]}} if with_texts else {})
        for place in places
    ]
    usage = {"total_tokens": sum(num for _, num in answers)}
    return HttpAnswer(json_bytes({"model": model, "results": results, "usage": usage}))


def _texts(given: object) -> list[str]:
    """Of strings, or of documents that have a text."""
    if type(given) is list and given:
        found = [each.get("text") if type(each) is dict else each for each in given]
        texts = [each for each in found if type(each) is str]
        if len(texts) == len(given):
            return texts
    raise InvalidRequestError("'documents': expected a list of texts, or of {\"text\": ...}")
