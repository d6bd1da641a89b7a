"""Rows of text, of pairs of texts or of token ids, asked of a model in batches that it takes."""

import asyncio
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
_PAIR: Final = 2


async def config_of(model: str, ask: Ask) -> pb.ModelConfig:
    """What a model takes and gives; raises what the RPC does, and for a name of no UTF-8."""
    try:
        request = pb.ModelConfigRequest(name=model)
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"'model' has no form in UTF-8: {error}") from error
    config: pb.ModelConfig = (await ask("ModelConfig", request)).config
    return config


def rows_of(given: object) -> list[Any]:
    """The rows of a field `input`: texts, pairs of texts, or lists of token ids.

    Raises:
        InvalidRequestError: it is none of these, or has too many.
    """
    if type(given) is str:
        return [given]
    if type(given) is list and given:
        kinds = set(map(type, given))
        if kinds == {int}:
            return [given]
        # Before each is looked at.
        check_num_rows(given, "input")
        if kinds == {str}:
            return given
        if kinds == {list}:
            if all(each and set(map(type, each)) == {int} for each in given):
                return given
            if all(len(each) == _PAIR and set(map(type, each)) == {str} for each in given):
                return [tuple(each) for each in given]
    raise InvalidRequestError(
        "'input': expected a text, a list of texts or of pairs of texts, a list of token ids, or a "
        "list of such lists"
    )


def check_num_rows(rows: Sequence[Any], name: str) -> None:
    """Raise InvalidRequestError for more rows than one request may have, of that field."""
    if len(rows) > _MAX_ROWS:
        raise InvalidRequestError(f"'{name}': {len(rows)} of them, expected at most {_MAX_ROWS}")


async def infer_rows(
    config: pb.ModelConfig, rows: Sequence[Any], output: str, ask: Ask
) -> list[tuple[Array, int]]:
    """Answers of one output, float32 of any shape, batch after batch, and the tokens of each.

    Args:
        config: of the model.
        rows: texts, pairs of texts, or lists of token ids; at least one.
        output: its name.
        ask: calls an RPC by its name.

    Raises:
        InvalidRequestError: the model does not take such rows, or they are too large together.
    """
    # Of a model that is not batched the number of rows stands in its shapes, -1 for any.
    fixed = [each.dims[0] for each in config.input if each.name in (_TEXT, _IDS) and each.dims]
    most = config.max_batch_size or max([0, *fixed]) or len(rows)
    parts = [rows[at : at + most] for at in range(0, len(rows), most)]
    _check_num_ids(parts)
    requests = [_request(config, part, output) for part in parts]
    answers = await _all(requests, ask)
    return [_floats(each, part) for each, part in zip(answers, parts, strict=True)]


def output_of(config: pb.ModelConfig) -> tuple[str, int]:
    """Name and size of the output with a vector for each row.

    Raises InvalidRequestError where there are none or several.
    """
    rank = 1 if config.max_batch_size else 2
    found = [each for each in config.output if each.data_type in _FLOATS and len(each.dims) == rank]
    if len(found) != 1:
        raise InvalidRequestError(
            f"model '{config.name}' has {len(found)} outputs of floats [batch, size], expected one"
        )
    return found[0].name, found[0].dims[-1]


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
    if type(rows[0]) is list:
        return _padded(config, rows)
    text = inputs.get(_TEXT)
    if text is None or text.data_type != pb.TYPE_STRING:
        raise InvalidRequestError(
            f"model '{config.name}' accepts no text: it has no input '{_TEXT}' of {BYTES}"
        )
    takes_pairs = bool(text.dims) and text.dims[-1] == _PAIR
    if takes_pairs != (type(rows[0]) is tuple):
        found = "pairs of texts, as rerankers do" if takes_pairs else "single texts, not pairs"
        raise InvalidRequestError(f"model '{config.name}' accepts {found}")
    rank = len(text.dims) + (1 if config.max_batch_size else 0)
    last = (_PAIR,) if takes_pairs else (1,) * (rank - 1)
    return {_TEXT: np.array(rows, dtype=STRING_DTYPE).reshape(len(rows), *last)}


def _padded(config: pb.ModelConfig, rows: Sequence[list[int]]) -> dict[str, Array]:
    """Lists of token ids as the inputs of a model, padded to the longest."""
    inputs = {each.name: each.data_type for each in config.input if each.name != _TEXT}
    if _IDS not in inputs or inputs.keys() - _BESIDE.keys() != {_IDS}:
        raise InvalidRequestError(f"model '{config.name}' does not accept token ids")
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


def _floats(payload: Any, rows: Sequence[Any]) -> tuple[Array, int]:
    """The vectors of an answer in fp32, and how many tokens the rows have: of texts it says."""
    head, _, raw = split_response(payload)
    response = pb.ModelInferResponse.FromString(head)
    (tensor,) = response.outputs
    array = array_from_bytes(raw[0], tensor.datatype, tensor.shape).astype(np.float32)
    num_ids = sum(map(len, rows)) if type(rows[0]) is list else 0
    return array, num_ids or response.parameters["num_tokens"].int64_param
