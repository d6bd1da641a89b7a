"""OpenAI's `/v1/embeddings`, over the same requests as all others."""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import numpy as np

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.byte_strings import BYTES, STRING_DTYPE
from services.contracts.kserve.request_wire import split_response
from services.contracts.kserve.tensors import (
    DATATYPE_FROM_NUMPY,
    Array,
    array_from_bytes,
    bytes_from_array,
)
from services.gateway.http.answers import HttpAnswer, json_bytes
from services.gateway.http.fields import Document, field, optional
from services.gateway.http.json_values import MAX_VALUES_BYTES
from services.pb import open_inference_v2_pb2 as pb

Ask = Callable[[str, Any], Awaitable[Any]]
_TEXT: Final = "text"
_IDS: Final = "input_ids"
_FLOATS: Final = frozenset((pb.TYPE_FP16, pb.TYPE_FP32, pb.TYPE_FP64, pb.TYPE_BF16))
_NUMPY: Final = {pb.TYPE_INT32: np.int32, pb.TYPE_INT64: np.int64}
# What a tokenizer gives beside the ids, for ids without padding.
_BESIDE: Final = {"attention_mask": 1, "token_type_ids": 0}
# As OpenAI's, and of all batches together, where one long row makes the others of its batch long.
_MAX_ROWS: Final = 2048
_MAX_IDS: Final = 1 << 20


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
    config = (await ask("ModelConfig", pb.ModelConfigRequest(name=model))).config
    rows = _rows(document.get("input"))
    if len(rows) > _MAX_ROWS:
        raise InvalidRequestError(f"'input': {len(rows)} of them, expected at most {_MAX_ROWS}")
    output = _output_of(config, optional(document, "dimensions", 0))
    most = config.max_batch_size or len(rows)
    parts = [rows[at : at + most] for at in range(0, len(rows), most)]
    _check_num_ids(parts)
    requests = [_request(config, part, output) for part in parts]
    answers = [_embeddings(each) for each in await _all(requests, ask)]
    if encoding == "float" and sum(each.nbytes for each, _ in answers) > MAX_VALUES_BYTES:
        raise InvalidRequestError(
            f"the embeddings have more than {MAX_VALUES_BYTES} bytes: ask for fewer at once, or "
            "for encoding_format base64"
        )
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(row, encoding)}
        for index, row in enumerate(row for embeddings, _ in answers for row in embeddings)
    ]
    num_tokens = sum(num for _, num in answers) or sum(len(r) for r in rows if type(r) is list)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    listed = {"object": "list", "data": data, "model": model, "usage": usage}
    try:
        return HttpAnswer(json_bytes(listed))
    except ValueError as error:
        raise InvalidRequestError(
            "an embedding has NaN or infinity, which JSON has not; ask for encoding_format base64"
        ) from error


async def _all(requests: Sequence[bytes], ask: Ask) -> list[Any]:
    """The answers; where one fails, the others are not waited for and do not go on."""
    tasks = [asyncio.ensure_future(ask("ModelInfer", each)) for each in requests]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        raise


def _check_num_ids(parts: Sequence[Sequence[Any]]) -> None:
    """All parts are padded before the first is answered: their sum is bounded."""
    num_ids = sum(len(part) * max(map(len, part)) for part in parts if type(part[0]) is list)
    if num_ids > _MAX_IDS:
        raise InvalidRequestError(
            f"'input': {num_ids} ids, each row of a batch counted as its longest one, expected "
            f"{_MAX_IDS} ids at most"
        )


def _rows(given: object) -> list[Any]:
    """A list of texts, or of lists of ids."""
    if type(given) is str:
        return [given]
    if type(given) is list and given:
        kinds = set(map(type, given))
        if kinds == {int}:
            return [given]
        if kinds == {str}:
            return given
        if kinds == {list} and all(each and set(map(type, each)) == {int} for each in given):
            return given
    raise InvalidRequestError(
        "'input': expected a text, a list of texts, a list of token ids, or a list of such lists"
    )


def _output_of(config: pb.ModelConfig, dimensions: int) -> str:
    """The name of the output with a vector for each row."""
    rank = 1 if config.max_batch_size else 2
    found = [each for each in config.output if each.data_type in _FLOATS and len(each.dims) == rank]
    if len(found) != 1:
        raise InvalidRequestError(
            f"model '{config.name}' has {len(found)} outputs of floats [batch, size], expected one"
        )
    size = found[0].dims[-1]
    if dimensions not in (0, size):
        raise InvalidRequestError(f"'dimensions': this model has {size}, got {dimensions}")
    return str(found[0].name)


def _request(config: pb.ModelConfig, rows: Sequence[Any], output: str) -> bytes:
    request = pb.ModelInferRequest(model_name=config.name)
    request.outputs.add(name=output)
    for name, array in _tensors(config, rows).items():
        datatype = DATATYPE_FROM_NUMPY[array.dtype]
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(bytes_from_array(array))
    return request.SerializeToString()


def _tensors(config: pb.ModelConfig, rows: Sequence[Any]) -> dict[str, Array]:
    inputs = {each.name: each for each in config.input}
    if type(rows[0]) is str:
        text = inputs.get(_TEXT)
        if text is None or text.data_type != pb.TYPE_STRING:
            raise InvalidRequestError(
                f"model '{config.name}' takes no text: it has no input '{_TEXT}' of {BYTES}"
            )
        rank = len(text.dims) + (1 if config.max_batch_size else 0)
        shape = [len(rows)] + [1] * (rank - 1)
        return {_TEXT: np.array(rows, dtype=STRING_DTYPE).reshape(shape)}
    return _padded(config, rows)


def _padded(config: pb.ModelConfig, rows: Sequence[list[int]]) -> dict[str, Array]:
    """Lists of token ids as the inputs of a model, padded to the longest."""
    inputs = {each.name: each.data_type for each in config.input if each.name != _TEXT}
    if _IDS not in inputs or inputs.keys() - _BESIDE.keys() != {_IDS}:
        raise InvalidRequestError(f"model '{config.name}' takes no token ids alone")
    longest = max(map(len, rows))
    tensors = {}
    for name, datatype in inputs.items():
        array = np.zeros((len(rows), longest), _NUMPY.get(datatype, np.int64))
        for number, ids in enumerate(rows):
            try:
                array[number, : len(ids)] = ids if name == _IDS else _BESIDE[name]
            except OverflowError as error:
                raise InvalidRequestError(f"'input': a token id is too large: {error}") from error
        tensors[name] = array
    return tensors


def _embeddings(payload: Any) -> tuple[Array, int]:
    """The vectors of an answer in fp32, and how many tokens it says that it took."""
    head, _, raw = split_response(payload)
    response = pb.ModelInferResponse.FromString(head)
    (tensor,) = response.outputs
    array = array_from_bytes(raw[0], tensor.datatype, tensor.shape).astype(np.float32)
    return array, response.parameters["num_tokens"].int64_param


def _encoded(row: Array, encoding: str) -> Any:
    if encoding == "base64":
        return base64.b64encode(row.tobytes()).decode()
    return row.tolist()
