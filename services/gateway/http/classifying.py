"""`/v1/classify`, as vLLM and SGLang have it: texts in, the label of each with its score out."""

import json
import time
import uuid

import numpy as np

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensors import Array
from services.contracts.model.label_scores import LabelScores
from services.gateway.http.answers import HttpAnswer, json_with_rows
from services.gateway.http.fields import Document, field
from services.gateway.http.json_values import MAX_VALUES_BYTES
from services.gateway.http.text_rows import (
    Ask,
    config_of,
    infer_rows,
    output_of,
    rows_of,
)
from services.pb import open_inference_v2_pb2 as pb


async def classify(document: Document, ask: Ask) -> HttpAnswer:
    """The best label of each text, pair of texts or list of token ids, and the scores of all.

    Args:
        document: of the request.
        ask: calls an RPC by its name.

    Raises:
        InvalidRequestError: the request is malformed, or the model has no labels for its answers.
    """
    model = field(document, "model", str)
    config = await config_of(model, ask)
    rows = rows_of(document.get("input"))
    output, labels = _labels(config)
    answers = await infer_rows(config, rows, output, ask)
    numbers_BL = np.concatenate([each for each, _ in answers]).astype(np.float64)
    if numbers_BL.nbytes > MAX_VALUES_BYTES:
        raise InvalidRequestError(
            f"the scores have more than {MAX_VALUES_BYTES} bytes: ask for fewer at once"
        )
    if not np.isfinite(numbers_BL).all():
        raise InvalidRequestError(f"model '{model}' gives NaN or infinity for one of the inputs")
    scores_BL = _scores(numbers_BL, LabelScores(config.parameters["label_scores"].string_value))
    data = (
        {
            "index": index,
            "label": labels[best],
            "score": scores[best],
            "probs": scores,
            "num_classes": len(labels),
        }
        for index, (best, scores) in enumerate(
            # Of the numbers, as scores near 1 may round to one.
            zip(numbers_BL.argmax(axis=1), map(np.ndarray.tolist, scores_BL), strict=True)
        )
    )
    num_tokens = sum(num for _, num in answers)
    listed = {
        "id": f"classify-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "labels": labels,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    return HttpAnswer(await json_with_rows(listed, "data", data))


def _labels(config: pb.ModelConfig) -> tuple[str, list[str]]:
    """The output that has a number for each label, and these."""
    output, size = output_of(config)
    labels: list[str] = json.loads(config.parameters["labels"].string_value or "[]")
    if len(labels) != size:
        raise InvalidRequestError(
            f"model '{config.name}' has {len(labels)} labels for {size} numbers of output "
            f"'{output}', one for each wanted: add it with a recipe that has labels: [...]"
        )
    return output, labels


def _scores(numbers_BL: Array, kind: LabelScores) -> Array:
    scores_BL = numbers_BL
    match kind:
        case LabelScores.NONE:
            pass
        case LabelScores.SIGMOID:
            scores_BL = np.exp(-np.logaddexp(0.0, -numbers_BL))
        case LabelScores.SOFTMAX:
            scores_BL = np.exp(numbers_BL - numbers_BL.max(axis=1, keepdims=True))
            scores_BL /= scores_BL.sum(axis=1, keepdims=True)
    return scores_BL
