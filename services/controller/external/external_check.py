"""One look at an external server: whether it has the model, and answers questions.

What is wrong begins with the word of a `ExternalFault`, which people and events tell apart.
"""

import asyncio
import json
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError

from services.contracts.external.dial import (
    CONNECT_TIMEOUT_S,
    kserve_channel,
    kserve_path,
    one_line,
)
from services.contracts.external.external_model import ExternalModel, ServerProtocol
from services.pb import open_inference_v2_pb2 as pb

if TYPE_CHECKING:
    import aiohttp

# For what a server answers from memory, and for what its model computes behind others' requests.
ANSWER_TIMEOUT_S: Final = 5.0
QUESTION_TIMEOUT_S: Final = 30.0
_MAX_ANSWER_BYTES: Final = 4 << 20
_NUM_NAMED: Final = 5
_CHAT: Final = "POST /chat/completions"
_PING: Final = [{"role": "user", "content": "ping"}]
_Code = grpc.StatusCode


class ExternalFault(StrEnum):
    """What is wrong with an external server."""

    UNREACHABLE = "unreachable"
    SLOW = "slow"
    STUCK = "stuck"
    REFUSING = "refusing"
    WRONG_MODEL = "wrong model"
    WRONG_PROTOCOL = "wrong protocol"
    NOT_DEPLOYED = "not deployed"


class _FoundError(Exception):
    """Ends a check."""

    def __init__(self, fault: ExternalFault, why: str) -> None:
        super().__init__(f"{fault.value}: {why}")


async def found_fault(
    model: ExternalModel,
    session: "aiohttp.ClientSession",
    headers: dict[str, str],
    *,
    is_asking: bool,
) -> str:
    """What is wrong, in words; "" when nothing is.

    Args:
        model: on the server.
        session: for HTTP.
        headers: of each request, with the token.
        is_asking: ask the model too, and not only about it.
    """
    try:
        if model.protocol is ServerProtocol.OPENAI:
            await _look_at_openai(model, session, headers, is_asking=is_asking)
        else:
            await _look_at_kserve(model, headers, is_asking=is_asking)
    except _FoundError as found:
        return str(found)
    return ""


async def _look_at_openai(
    model: ExternalModel, session: Any, headers: dict[str, str], *, is_asking: bool
) -> None:
    given = {"headers": headers, "allow_redirects": False}
    asked = session.get(f"{model.http_url}/models", **given)
    status, document = await _answer(asked, "GET /models", ANSWER_TIMEOUT_S, ExternalFault.SLOW)
    try:
        names = [str(each["id"]) for each in document["data"]]
    except (KeyError, TypeError) as error:
        why = f"GET /models is answered {status} with no list of models: {one_line(document)}"
        raise _FoundError(ExternalFault.WRONG_PROTOCOL, why) from error
    if is_asking or model.remote_name not in names:
        ping = {"model": model.remote_name, "messages": _PING, "max_tokens": 1}
        asked = session.post(f"{model.http_url}/chat/completions", json=ping, **given)
        answer = await _answer(asked, _CHAT, QUESTION_TIMEOUT_S, ExternalFault.STUCK)
        _judge(model.remote_name, names, *answer)


def _judge(name: str, names: Sequence[str], status: int, document: Any) -> None:
    """Raise what is wrong with an answer of the model; `names` are listed.

    A listed model may answer under another name: routers and versions are asked by an alias.
    """
    fields = document if isinstance(document, dict) else {}
    # A model that has no chat refuses it, which is an answer.
    if status == 200 and not fields.get("choices"):
        why = f"{_CHAT} is answered without choices: {one_line(document)}"
        raise _FoundError(ExternalFault.WRONG_PROTOCOL, why)
    # `transformers serve` lists what is in its cache, and adds the revision to the name.
    if name not in names and str(fields.get("model")).partition("@")[0] != name:
        listed = one_line(", ".join(names[:_NUM_NAMED])) or "none"
        why = f"it has no model '{name}'; it has: {listed}"
        raise _FoundError(ExternalFault.WRONG_MODEL, why)
    if status >= 400 and _is_of_no_model(fields):
        why = f"it lists '{name}', and {_CHAT} is answered {status}: {one_line(document)}"
        raise _FoundError(ExternalFault.WRONG_MODEL, why)


def _is_of_no_model(fields: dict[str, Any]) -> bool:
    """Whether an error says that there is no such model, and not that the model has no chat."""
    error = fields.get("error")
    # Older versions of vLLM have the error's fields at the top; its type is vLLM's own.
    error = error if isinstance(error, dict) else fields
    return error.get("code") == "model_not_found" or error.get("type") == "NotFoundError"


async def _answer(asked: Any, what: str, timeout_s: float, slow: ExternalFault) -> tuple[int, Any]:
    """Status and document of an answer."""
    import aiohttp

    try:
        async with asyncio.timeout(timeout_s), asked as response:
            raw = b""
            # It comes in parts, as servers and networks cut it.
            while len(raw) < _MAX_ANSWER_BYTES and (part := await response.content.readany()):
                raw += part
            status = response.status
    except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as error:
        # What aiohttp has of TLS where nothing is set, plain HTTP included.
        words = one_line(error).replace(" ssl:default", "")
        raise _FoundError(ExternalFault.UNREACHABLE, words) from error
    except TimeoutError as error:
        raise _FoundError(slow, _late(what, timeout_s)) from error
    except aiohttp.ClientError as error:
        fault = ExternalFault.STUCK if slow is ExternalFault.STUCK else ExternalFault.WRONG_PROTOCOL
        raise _FoundError(fault, f"no HTTP in answer to {what}: {one_line(error)}") from error
    body = one_line(raw.decode(errors="replace"))
    if status in (401, 403) or status >= 500:
        fault = ExternalFault.STUCK if status >= 500 else ExternalFault.REFUSING
        raise _FoundError(fault, f"{what} is answered {status}: {body}")
    try:
        return status, json.loads(raw)
    except (ValueError, RecursionError) as error:
        is_cut = len(raw) >= _MAX_ANSWER_BYTES
        found = f"more than {_MAX_ANSWER_BYTES} bytes" if is_cut else "what is no JSON"
        why = f"{what} is answered {status} with {found}: {body}"
        raise _FoundError(ExternalFault.WRONG_PROTOCOL, why) from error


async def _look_at_kserve(
    model: ExternalModel, headers: dict[str, str], *, is_asking: bool
) -> None:
    name = model.remote_name
    version = model.remote_version
    # A channel of this look alone, which finds for itself whether it can connect.
    async with kserve_channel(model, _MAX_ANSWER_BYTES) as channel:
        about = pb.ModelMetadataRequest(name=name, version=version)
        raw = await _called(channel, model.url, "ModelMetadata", about, headers, ANSWER_TIMEOUT_S)
        found = _parsed(pb.ModelMetadataResponse, raw, "ModelMetadata").name
        if found != name:
            raise _FoundError(
                ExternalFault.WRONG_MODEL, f"asked for '{name}', it says it is '{one_line(found)}'"
            )
        whether = pb.ModelReadyRequest(name=name, version=version)
        raw = await _called(channel, model.url, "ModelReady", whether, headers, ANSWER_TIMEOUT_S)
        if not _parsed(pb.ModelReadyResponse, raw, "ModelReady").ready:
            raise _FoundError(ExternalFault.STUCK, f"it says that '{name}' is not ready")
        if is_asking:
            # Without inputs: a server that refuses it has parsed it.
            question = pb.ModelInferRequest(model_name=name, model_version=version)
            raw = await _called(
                channel, model.url, "ModelInfer", question, headers, QUESTION_TIMEOUT_S
            )
            # A refusal is no bytes, which parse.
            _parsed(pb.ModelInferResponse, raw, "ModelInfer")


def _parsed(message: Any, raw: bytes, rpc: str) -> Any:
    """The message that an RPC is to be answered with."""
    try:
        return message.FromString(raw)
    except (DecodeError, TypeError) as error:  # or none at all
        why = f"{rpc} is answered with another message"
        raise _FoundError(ExternalFault.WRONG_PROTOCOL, why) from error


async def _called(
    channel: Any, url: str, rpc: str, request: Any, headers: dict[str, str], timeout_s: float
) -> bytes:
    """The answer to an RPC; none where the model refuses a question."""
    is_question = rpc == "ModelInfer"
    late = ExternalFault.STUCK if is_question else ExternalFault.SLOW
    try:
        call = channel.unary_unary(kserve_path(rpc))
        body = request.SerializeToString()
        answer: bytes = await call(body, timeout=timeout_s, metadata=tuple(headers.items()))
    except grpc.aio.AioRpcError as error:
        code = error.code()
        found = f"{rpc} is answered {code.name}: {one_line(error.details())}"
        is_connected = channel.get_state() is grpc.ChannelConnectivity.READY
        if code in (_Code.UNAVAILABLE, _Code.DEADLINE_EXCEEDED):
            is_late = code is _Code.DEADLINE_EXCEEDED
            if not is_connected and not (is_late and await _takes_connections(url)):
                why = f"no gRPC connection: {one_line(error.details())}"
                raise _FoundError(ExternalFault.UNREACHABLE, why) from error
            why = _late(rpc, timeout_s) if is_late else found
            raise _FoundError(late if is_late else ExternalFault.STUCK, why) from error
        if code in (_Code.UNAUTHENTICATED, _Code.PERMISSION_DENIED):
            raise _FoundError(ExternalFault.REFUSING, found) from error
        if code in (_Code.NOT_FOUND, _Code.INVALID_ARGUMENT) and not is_question:
            raise _FoundError(ExternalFault.WRONG_MODEL, found) from error
        if not is_question or code is _Code.UNIMPLEMENTED:
            raise _FoundError(ExternalFault.WRONG_PROTOCOL, found) from error
        return b""
    return answer


async def _takes_connections(url: str) -> bool:
    """Whether something listens there, which gRPC has no connection to before it answers."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except OSError:
        return False
    writer.close()
    return True


def _late(what: str, timeout_s: float) -> str:
    return f"it accepts connections and does not answer {what} within {timeout_s:g} s"
