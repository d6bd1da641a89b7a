"""OpenAI's `/v1/embeddings`, over the same requests as all others."""

import base64
from typing import Any

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensors import Array
from services.gateway.http.answers import HttpAnswer, json_with_rows
from services.gateway.http.fields import Document, field, optional
from services.gateway.http.json_values import MAX_VALUES_BYTES
from services.gateway.http.text_rows import (
    Ask,
    config_of,
    infer_rows,
    output_of,
    rows_of,
)


async def embed(document: Document, ask: Ask) -> HttpAnswer:
    """One embedding for each text or list of token ids, in batches that the model takes.

    Args:
        document: of the request.
        ask: calls an RPC by its name.

    Raises:
        InvalidRequestError: the request is malformed, or the model gives no embeddings for it.
    """
    model = field(document, "model", str)
    encoding = optional(document, "encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise InvalidRequestError(f"encoding_format '{encoding}': expected float or base64")
    config = await config_of(model, ask)
    if config.parameters["labels"].string_value:
        raise InvalidRequestError(f"model '{model}' classifies: its labels are at /v1/classify")
    rows = rows_of(document.get("input"))
    output, size = output_of(config)
    if (dimensions := optional(document, "dimensions", size)) not in (0, size):
        raise InvalidRequestError(f"'dimensions': this model has {size}, got {dimensions}")
    answers = await infer_rows(config, rows, output, ask)
    if encoding == "float" and sum(each.nbytes for each, _ in answers) > MAX_VALUES_BYTES:
        raise InvalidRequestError(
            f"the embeddings have more than {MAX_VALUES_BYTES} bytes: ask for fewer at once, or "
            "for encoding_format base64"
        )
    data = (
        {"object": "embedding", "index": index, "embedding": _encoded(row, encoding)}
        for index, row in enumerate(row for embeddings, _ in answers for row in embeddings)
    )
    num_tokens = sum(num for _, num in answers)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    listed = {"object": "list", "model": model, "usage": usage}
    try:
        return HttpAnswer(await json_with_rows(listed, "data", data))
    except ValueError as error:
        raise InvalidRequestError(
            "an embedding has NaN or infinity, which JSON cannot represent; ask for base64"
        ) from error


def _encoded(row: Array, encoding: str) -> Any:
    if encoding == "base64":
        return base64.b64encode(row.tobytes()).decode()
    return row.tolist()
