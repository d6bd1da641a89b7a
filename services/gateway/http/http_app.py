"""The application that the HTTP port serves: each request goes to the handlers of gRPC's port."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import grpc

from services.contracts.errors import InvalidRequestError, NotFoundError
from services.gateway.api.service import SERVICE
from services.gateway.api.status_codes import StatusTable
from services.gateway.http.answers import (
    HttpAnswer,
    HttpStatusError,
    compressed,
    error_body,
    openai_error,
    refused_answer,
)
from services.gateway.http.bodies import Bodies
from services.gateway.http.classifying import classify
from services.gateway.http.embeddings import embed
from services.gateway.http.fields import MAX_JSON_BYTES, Document, document_from_json, field
from services.gateway.http.http_call import HttpCall
from services.gateway.http.http_connection import CONNECTION
from services.gateway.http.metadata_routes import (
    AS_OPENAI,
    MODEL,
    OF_MODELS,
    ONE_MODEL,
    ROUTES,
    Route,
)
from services.gateway.http.relay import RELAYED, Relay
from services.gateway.http.requests import JSON_LENGTH, request_from_body
from services.gateway.http.reranking import rerank, rerank_texts
from services.gateway.http.responses import answer_from_response
from services.gateway.http.text_rows import Ask
from services.gateway.pipeline.parts import Parts
from services.grpc_server.calls.context import AbortError
from services.grpc_server.request.messages import StatusError
from services.grpc_server.server_options import ServerOptions, UnhandledCall

_INFER_PATH: Final = f"/{SERVICE.full_name}/ModelInfer"
# As of such requests over gRPC.
_MAX_METADATA_BYTES: Final = 1 << 20
_LONGEST_NUMBER: Final = 18
# Batches of one client's request under way at once.
_MAX_BATCHES: Final = 64
# OpenAI's paths and their like that are inference: from a document, through `ask`, to an answer.
_Answering = Callable[[Document, Ask], Awaitable[HttpAnswer]]
_OPENAI: Final[Mapping[str, _Answering]] = {
    "/v1/classify": classify,
    "/v1/embeddings": embed,
    "/v1/rerank": rerank,
    # Of Cohere's second API, of which what is asked and answered here is the same.
    "/v2/rerank": rerank,
}


class HttpApp:
    """An ASGI application over handlers of RPCs."""

    def __init__(
        self,
        handlers: Mapping[str, Any],
        statuses: StatusTable,
        options: ServerOptions,
        is_leaving: Callable[[], bool],
        is_external: Callable[[str], bool] = lambda _: False,
        bound_of: Callable[[str], int] = lambda _: _MAX_BATCHES,
    ) -> None:
        """Serve what the handlers do.

        Args:
            handlers: of RPCs by their names, behind the check of access.
            statuses: of errors.
            options: of gRPC's port; both are in one account of memory.
            is_leaving: whether the gateway drains.
            is_external: whether a model is one of an OpenAI server.
            bound_of: requests that a model may have under way.
        """
        self._handlers = handlers
        self._statuses = statuses
        self._options = options
        self._bodies = Bodies(options)
        self._is_leaving = is_leaving
        self._is_external = is_external
        self._bound_of = bound_of

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        connection = scope["extensions"][CONNECTION]
        connection.answering = asyncio.current_task()
        answer = await self._answered(scope, receive, send)
        connection.answering = None
        if answer is None:
            return  # it was sent in parts
        length = (b"content-length", b"%d" % len(answer.body))
        headers = [(b"content-type", answer.content_type), length, *answer.headers]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answered(self, scope: Any, receive: Any, send: Any) -> HttpAnswer | None:
        call: HttpCall | None = None
        try:
            call = HttpCall(scope, receive, send)
            remaining_s = call.time_remaining()
            if remaining_s is None:
                answer = await self._routed(call)
            else:
                async with asyncio.timeout(remaining_s):
                    answer = await self._routed(call)
            accepted = call.headers.get("accept-encoding")
            return await compressed(answer, accepted) if accepted and answer else answer
        except (Exception, asyncio.CancelledError) as error:
            refused = self._refused(error)
            if not scope["path"].startswith("/v1/"):
                return refused
            refused = openai_error(refused)
            return await call.relay.refused(refused) if call and call.relay else refused
        finally:
            if call is not None:
                call.end()

    async def _routed(self, call: HttpCall) -> HttpAnswer | None:
        path = call.path
        route = ROUTES.get(path)
        if route is not None:
            return await self._answer(call, route, "", "")
        if path in _OPENAI or path in RELAYED:
            _check_method(call, "POST")
            return await self._openai(call)
        if path.startswith(ONE_MODEL):
            name = path.removeprefix(ONE_MODEL)
            return await self._answer(call, AS_OPENAI, name, "")
        match = MODEL.fullmatch(path)
        if match is None:
            raise NotFoundError(f"no such path: '{path[:256]}'")
        name, version, asked = match.groups()
        if asked == "infer":
            _check_method(call, "POST")
            return await self._infer(call, (name, version or ""))
        # Clients of text-embeddings-inference name no model, but have a base URL.
        if asked == "rerank" and version is None:
            _check_method(call, "POST")
            return await self._rank(call, name)
        if asked not in OF_MODELS:
            raise NotFoundError(f"no such path: '{path[:256]}'")
        return await self._answer(call, OF_MODELS[asked], name, version or "")

    async def _answer(self, call: HttpCall, route: Route, name: str, version: str) -> HttpAnswer:
        _check_method(call, route.method)
        if route.rpc == "ServerReady" and self._is_leaving():
            return HttpAnswer(error_body("the server is shutting down"), status=503)
        document: Document = {}
        if route.method == "POST":
            path = f"/{SERVICE.full_name}/{route.rpc}"
            body = await self._body(call, path, _MAX_METADATA_BYTES)
            document = document_from_json(b"".join(body) or b"{}")
        request = route.request(name, version, document)
        return route.answer(await self._ask(call, route.rpc, request))

    async def _infer(self, call: HttpCall, model: tuple[str, str]) -> HttpAnswer:
        try:
            length = _json_length(call)
            body = await self._body(call, _INFER_PATH, self._options.limits.max_message_bytes)
            message, wanted = request_from_body(body, length, model, self._options.take)
            del body
        except BaseException as error:
            self._note(call, error)
            raise
        return await answer_from_response(await self._ask(call, "ModelInfer", message), wanted)

    async def _openai(self, call: HttpCall) -> HttpAnswer | None:
        try:
            raw = await self._json(call)
            document = document_from_json(raw)
            model = field(document, "model", str) if call.path in RELAYED else ""
            is_external = self._is_external(model)
            if not is_external and call.path not in _OPENAI:
                raise NotFoundError(
                    f"model '{model}' has no {call.path}: models of external OpenAI servers have"
                )
        except BaseException as error:
            self._note(call, error)
            raise
        if is_external:
            relay = call.relay = Relay(call, document)
            await self._ask(call, "ModelInfer", relay.request(model, raw))
            return await relay.answered()
        return await self._answer_batches(call, document, _OPENAI[call.path])

    async def _rank(self, call: HttpCall, model: str) -> HttpAnswer:
        try:
            document = document_from_json(await self._json(call)) | {"model": model}
        except BaseException as error:
            self._note(call, error)
            raise
        return await self._answer_batches(call, document, rerank_texts)

    async def _answer_batches(
        self, call: HttpCall, document: Document, answering: _Answering
    ) -> HttpAnswer:
        """The answer of a path of several RPCs; what fails before its inference is counted here."""
        is_inferred = False
        # With more at once than its model may have, it would be refused however often it is sent.
        bound = self._bound_of(str(document.get("model")))
        turns = asyncio.Semaphore(min(bound, _MAX_BATCHES))
        call.parts = Parts()

        async def ask(rpc: str, request: Any) -> Any:
            nonlocal is_inferred
            is_inferred |= rpc == "ModelInfer"
            async with turns:
                return await self._ask(call, rpc, request)

        try:
            return await answering(document, ask)
        except BaseException as error:
            if not is_inferred:
                self._note(call, error)
            raise

    async def _json(self, call: HttpCall) -> bytes:
        return b"".join(await self._body(call, _INFER_PATH, MAX_JSON_BYTES))

    async def _body(self, call: HttpCall, rpc_path: str, max_bytes: int) -> Any:
        # A caller without a token is refused before its body is read.
        if self._options.check is not None:
            await self._options.check(rpc_path, call.context)
        return await self._bodies.read(call, max_bytes)

    async def _ask(self, call: HttpCall, rpc: str, request: Any) -> Any:
        """The answer of an RPC's handler."""
        return await self._handlers[rpc].unary_unary(request, call.context)

    def _refused(self, error: BaseException) -> HttpAnswer:
        if isinstance(error, HttpStatusError):
            answer = refused_answer(error.code, str(error), status=error.status)
            allow = ((b"allow", error.method.encode()),) if error.method else ()
            return answer._replace(headers=(*answer.headers, *allow))
        if isinstance(error, AbortError):
            return refused_answer(error.code, error.details, error.trailing)
        if isinstance(error, StatusError):
            return refused_answer(error.code, str(error), error.trailing)
        if isinstance(error, TimeoutError):
            return refused_answer(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed")
        if isinstance(error, Exception):
            refused = self._statuses.refusal_of(error)
            return refused_answer(refused.code, refused.details, refused.trailing)
        # Of a client that left, who does not see it, or of a server that stops.
        why = "the server stopped before this request was answered"
        return refused_answer(grpc.StatusCode.UNAVAILABLE, why)

    def _note(self, call: HttpCall, error: BaseException) -> None:
        """Count an inference request that did not come to its handler."""
        if isinstance(error, AbortError | StatusError):
            code = error.code
        else:
            code = self._statuses.code_of(error)
        took_s = time.monotonic() - call.began_s
        is_overload = getattr(error, "is_overload", False)
        metadata = call.invocation_metadata()
        self._options.on_unhandled(
            UnhandledCall(_INFER_PATH, call.peer(), metadata, code, took_s, is_overload)
        )


def _json_length(call: HttpCall) -> int | None:
    value = call.headers.get(JSON_LENGTH)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= _LONGEST_NUMBER):
        raise InvalidRequestError(f"{JSON_LENGTH}: expected a number, got '{value[:64]}'")
    return int(value)


def _check_method(call: HttpCall, method: str) -> None:
    # Probes ask by HEAD, whose answer the server sends without its body (RFC 9110, 9.3.2).
    if call.method not in {method, "HEAD" if method == "GET" else method}:
        words = f"this path accepts only {method}"
        raise HttpStatusError(405, grpc.StatusCode.UNIMPLEMENTED, words, method)
