"""One look at an external server: whether it has the model and answers questions.

What is wrong begins with one of the words of `Fault`, which events and people tell apart.
"""

import asyncio
import json
import ssl
from contextlib import aclosing
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError

from services.contracts.errors import ExternalServerError
from services.contracts.external.dial import kserve_channel, kserve_path, one_line
from services.contracts.external.external_model import ExternalModel, ServerProtocol
from services.pb import open_inference_v2_pb2 as pb

if TYPE_CHECKING:
    import aiohttp

# For what a server answers from memory.
ANSWER_TIMEOUT_S: Final = 5.0
# For a question to the model: a busy server may have others before it.
QUESTION_TIMEOUT_S: Final = 30.0
_MAX_ANSWER_BYTES: Final = 4 << 20
_NUM_NAMED: Final = 5
_REFUSING: Final = (401, 403)
_Code = grpc.StatusCode


class Fault(StrEnum):
    """What is wrong with an external server."""

    UNREACHABLE = "unreachable"
    SLOW = "slow"
    STUCK = "stuck"
    REFUSING = "refusing"
    WRONG_MODEL = "wrong model"
    WRONG_PROTOCOL = "wrong protocol"


class _FoundError(Exception):
    """Ends a check."""

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(f"{fault.value}: {why}")


class ExternalCheck:
    """Checks one external model, over one connection or session."""

    def __init__(self, model: ExternalModel, session: "aiohttp.ClientSession") -> None:
        """Ask nothing yet; the session is for HTTP."""
        self._model = model
        self._session = session

    async def fault(self, headers: dict[str, str], *, is_asking: bool) -> str:
        """What is wrong, in words; "" when nothing is.

        Args:
            headers: of each request, with the token.
            is_asking: ask the model too, and not only about it.
        """
        is_openai = self._model.protocol is ServerProtocol.OPENAI
        look = self._look_at_openai if is_openai else self._look_at_kserve
        try:
            await look(headers, is_asking)
        except (_FoundError, ExternalServerError) as found:
            return str(found)
        return ""

    async def _look_at_openai(self, headers: dict[str, str], is_asking: bool) -> None:
        document = await self._json(headers, "GET /models", None, ANSWER_TIMEOUT_S, Fault.SLOW)
        try:
            names = [str(each["id"]) for each in document["data"]]
        except (KeyError, TypeError) as error:
            why = "GET /models is not answered with a list of models as OpenAI has it"
            raise _FoundError(Fault.WRONG_PROTOCOL, why) from error
        wanted = self._model.remote_name
        if wanted not in names:
            listed = ", ".join(names[:_NUM_NAMED]) or "none"
            raise _FoundError(Fault.WRONG_MODEL, f"it has no model '{wanted}'; it has: {listed}")
        if is_asking:
            ping = [{"role": "user", "content": "ping"}]
            asked = {"model": wanted, "messages": ping, "max_tokens": 1}
            what = "POST /chat/completions"
            answer = await self._json(headers, what, asked, QUESTION_TIMEOUT_S, Fault.STUCK)
            if answer is not None and "choices" not in answer:
                why = f"{what} is answered with JSON that has no choices"
                raise _FoundError(Fault.WRONG_PROTOCOL, why)

    async def _json(
        self, headers: dict[str, str], what: str, body: Any, timeout_s: float, slow: Fault
    ) -> Any:
        """A document; None where the server refuses a question, as one that has no chat does."""
        import aiohttp

        method, path = what.split()
        url = self._model.http_url + path
        try:
            async with asyncio.timeout(timeout_s):
                asking = self._session.request(method, url, json=body, headers=headers)
                async with asking as response:
                    raw = await response.content.read(_MAX_ANSWER_BYTES)
                    status = response.status
        except aiohttp.ServerTimeoutError as error:
            raise _FoundError(Fault.UNREACHABLE, f"no connection to {url} in time") from error
        except TimeoutError as error:
            raise _FoundError(slow, _late(what, timeout_s)) from error
        except aiohttp.ClientConnectorError as error:
            raise _FoundError(Fault.UNREACHABLE, one_line(error)) from error
        except aiohttp.ClientConnectionError as error:
            why = f"it ended the connection in place of an answer to {what}: {one_line(error)}"
            raise _FoundError(Fault.STUCK if body else Fault.WRONG_PROTOCOL, why) from error
        except (aiohttp.ClientError, ssl.SSLError) as error:
            why = f"{what} is not answered in HTTP: {one_line(error)}"
            raise _FoundError(Fault.WRONG_PROTOCOL, why) from error
        said = one_line(raw.decode(errors="replace"))
        if status in _REFUSING:
            raise _FoundError(Fault.REFUSING, f"{what} is answered {status}, {self._token}: {said}")
        if body and 400 <= status < 500:
            return None
        if status != 200:
            fault = Fault.STUCK if status >= 500 else Fault.WRONG_PROTOCOL
            raise _FoundError(fault, f"{what} is answered {status}: {said}")
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            why = f"{what} is answered with what is no JSON: {said}"
            raise _FoundError(Fault.WRONG_PROTOCOL, why) from error

    async def _look_at_kserve(self, headers: dict[str, str], is_asking: bool) -> None:
        model = self._model
        which = {"name": model.remote_name, "version": model.remote_version}
        async with aclosing(_Channel(model, headers)) as channel:
            request = pb.ModelMetadataRequest(**which).SerializeToString()
            raw = await self._asked(channel, "ModelMetadata", request, ANSWER_TIMEOUT_S, Fault.SLOW)
            try:
                name = pb.ModelMetadataResponse.FromString(raw).name
            except DecodeError as error:
                why = "ModelMetadata is answered with another message"
                raise _FoundError(Fault.WRONG_PROTOCOL, why) from error
            if name != model.remote_name:
                why = f"asked for '{model.remote_name}', it says that it is '{name}'"
                raise _FoundError(Fault.WRONG_MODEL, why)
            request = pb.ModelReadyRequest(**which).SerializeToString()
            raw = await self._asked(channel, "ModelReady", request, ANSWER_TIMEOUT_S, Fault.SLOW)
            if not pb.ModelReadyResponse.FromString(raw).ready:
                raise _FoundError(Fault.STUCK, f"it says that '{name}' is not ready")
            if is_asking:
                # Without inputs: whoever refuses it has read it.
                request = pb.ModelInferRequest(
                    model_name=model.remote_name, model_version=model.remote_version
                ).SerializeToString()
                await self._asked(channel, "ModelInfer", request, QUESTION_TIMEOUT_S, Fault.STUCK)

    async def _asked(
        self, channel: "_Channel", rpc: str, request: bytes, timeout_s: float, slow: Fault
    ) -> bytes:
        try:
            return await channel.ask(rpc, request, timeout_s)
        except grpc.aio.AioRpcError as error:
            code = error.code()
            said = f"{rpc} is answered {code.name}: {one_line(error.details())}"
            is_question = rpc == "ModelInfer"
            if code is _Code.DEADLINE_EXCEEDED:
                is_connected = channel.is_connected
                fault = slow if is_connected else Fault.UNREACHABLE
                why = _late(rpc, timeout_s) if is_connected else "no gRPC connection in time"
                raise _FoundError(fault, why) from error
            if code is _Code.UNAVAILABLE:
                fault = Fault.STUCK if channel.is_connected else Fault.UNREACHABLE
                raise _FoundError(fault, said) from error
            if code in (_Code.UNAUTHENTICATED, _Code.PERMISSION_DENIED):
                raise _FoundError(Fault.REFUSING, f"{said}, {self._token}") from error
            if code in (_Code.NOT_FOUND, _Code.INVALID_ARGUMENT) and not is_question:
                raise _FoundError(Fault.WRONG_MODEL, said) from error
            if not is_question or code is _Code.UNIMPLEMENTED:
                raise _FoundError(Fault.WRONG_PROTOCOL, said) from error
            return b""

    @property
    def _token(self) -> str:
        token = self._model.token
        return f"with token '{token}'" if token else "without a token (smelt models add --token)"


class _Channel:
    """A channel of one check, so that each finds for itself whether it can connect."""

    def __init__(self, model: ExternalModel, headers: dict[str, str]) -> None:
        # The stubs of gRPC want what is optional.
        self._channel: Any = kserve_channel(model)
        self._metadata = tuple(headers.items())

    @property
    def is_connected(self) -> bool:
        return bool(self._channel.get_state() is grpc.ChannelConnectivity.READY)

    async def ask(self, rpc: str, request: bytes, timeout_s: float) -> bytes:
        call = self._channel.unary_unary(kserve_path(rpc))
        answer: bytes = await call(request, timeout=timeout_s, metadata=self._metadata)
        return answer

    async def aclose(self) -> None:
        await self._channel.close()


def _late(what: str, timeout_s: float) -> str:
    return f"it accepts connections and does not answer {what} within {timeout_s:g} s"
