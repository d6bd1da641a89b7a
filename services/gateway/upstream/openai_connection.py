"""An external model of OpenAI's protocol: a request over HTTP is passed on, and its answer back."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import aiohttp

from services.contracts.errors import (
    AnswerTooLargeError,
    DeadlineExceededError,
    ExternalServerError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    SmeltError,
    UnsupportedFeatureError,
)
from services.contracts.external.dial import one_line
from services.contracts.external.external_model import ExternalModel
from services.contracts.transport.frames import Payload
from services.gateway.upstream.external_connection import ExternalConnection, ExternalLimits

if TYPE_CHECKING:
    from services.gateway.http.relay import Relay

# What is no stream is passed on whole, so that its client sees no half of it.
_MAX_WHOLE_BYTES: Final = 64 << 20
_EVENTS: Final = "text/event-stream"
_REFUSING: Final = (401, 403)
# The error of the client by HTTP status; of others that are its fault InvalidRequestError.
_ERRORS: Final[dict[int, type[SmeltError]]] = {
    404: NotFoundError,
    408: DeadlineExceededError,
    429: OverloadedError,
}
# Of 5xx those that say the same of us; all others are a bad gateway's.
_KEPT: Final = (503, 504)
_BAD_GATEWAY: Final = 502


class OpenAiRequest(bytes):
    """A ModelInferRequest that stands for a request over HTTP in the chain of inference.

    It names the model, and has the HTTP body as its contents; what answers it is the relay.
    """

    relay: "Relay"


class OpenAiConnection(ExternalConnection):
    """Asks over a session that all such connections share."""

    def __init__(
        self, model: ExternalModel, limits: ExternalLimits, session: aiohttp.ClientSession
    ) -> None:
        """Nothing is sent yet.

        Args:
            model: on the server.
            limits: of time.
            session: for HTTP; not closed here.
        """
        super().__init__(model, limits)
        self._session = session

    async def infer(
        self, request: Payload, timeout_s: float | None = None, *, trace: str = ""
    ) -> Payload:
        """Pass on a request of the HTTP port, and its answer; nothing is left to return.

        Args:
            request: an OpenAiRequest.
            timeout_s: is the HTTP port's affair.
            trace: of the request.

        Raises:
            UnsupportedFeatureError: it came by gRPC.
            ConnectionLostError: the server cannot be reached.
            ExternalServerError: it failed, or ended in the middle of its answer.
            SmeltError: what it answered, in the class of its status.
        """
        del timeout_s
        if not isinstance(request, OpenAiRequest):
            raise UnsupportedFeatureError(
                f"model '{self._model.name}' is of an OpenAI server: ask POST "
                "/v1/chat/completions, /v1/completions or /v1/embeddings at the HTTP port "
                "(SMELT_GATEWAY_HTTP_PORT)"
            )
        relay = request.relay
        async with self._asked(relay, trace) as response:
            if response.status != 200:
                await self._refuse(response, relay)
            if response.content_type != _EVENTS:
                relay.keep(200, _passed_headers(response), await self._whole(response))
                return b""
            await relay.begin(response.headers.get("content-type", _EVENTS))
            async for part in self._parts(response):
                await relay.write(part)
        return b""

    @asynccontextmanager
    async def _asked(self, relay: "Relay", trace: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer once its head has come; its connection is closed unless all of it was read."""
        url = self._model.http_url + relay.path.removeprefix("/v1")
        document = relay.document | {"model": self._model.remote_name}
        headers = self._headers(trace) | {"content-type": "application/json"}
        body = json.dumps(document, separators=(",", ":")).encode()
        asking = self._session.post(url, data=body, headers=headers, allow_redirects=False)
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(self._limits.first_byte_s):
                response = await asking
            async with response:
                yield response
        except aiohttp.ClientConnectorError as error:
            raise self._unreachable(one_line(error), may_have_run=False) from error
        except aiohttp.ConnectionTimeoutError as error:
            raise self._unreachable("no connection in time", may_have_run=False) from error
        except TimeoutError as error:
            limits = self._limits
            why = f"did not begin to answer within {limits.first_byte_s:g} s"
            if response is not None:
                why = f"sent nothing for {limits.idle_s:g} s"
            raise DeadlineExceededError(self._words(why)) from error
        except aiohttp.ClientError as error:
            what = "ended the connection" if response is None else "ended in its answer"
            relay.note_status(_BAD_GATEWAY)
            raise self._failed(f"{what}: {one_line(error) or type(error).__name__}") from error

    async def _parts(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """What comes, as it comes; raises TimeoutError when for long nothing does."""
        now_s = asyncio.get_running_loop().time
        async with asyncio.timeout(self._limits.idle_s) as timer:
            async for part in response.content.iter_any():
                # The client's time to take it is not the server's.
                timer.reschedule(None)
                yield part
                timer.reschedule(now_s() + self._limits.idle_s)

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for piece in self._parts(response):
            pieces.append(piece)
            size += len(piece)
            if size > _MAX_WHOLE_BYTES:
                raise AnswerTooLargeError(
                    self._words(f"answers more than {_MAX_WHOLE_BYTES} bytes; ask for less")
                )
        return b"".join(pieces)

    async def _refuse(self, response: aiohttp.ClientResponse, relay: "Relay") -> None:
        """Raise the error of a status, and keep the server's own answer where it is for clients."""
        status = response.status
        body = await self._whole(response)
        found = f"answers {status}: {one_line(body.decode(errors='replace'))}"
        if status in _REFUSING:
            token = f"token '{self._model.token}'" if self._model.token else "no token"
            relay.note_status(_BAD_GATEWAY)
            raise self._failed(f"{found}; it was sent {token}")
        if 400 <= status < 500:
            relay.keep(status, _passed_headers(response), body)
            raise _ERRORS.get(status, InvalidRequestError)(self._words(found))
        relay.note_status(status if status in _KEPT else _BAD_GATEWAY)
        raise ExternalServerError(self._words(found))


def _passed_headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    names = ("content-type", "retry-after", "retry-after-ms", "x-request-id")
    return {name: response.headers[name] for name in names if name in response.headers}
