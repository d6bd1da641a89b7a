"""A server that speaks OpenAI's protocol, healthy or at fault as a test wants it."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from tests.certificates import CertificateFiles

WORDS = ("one ", "two ", "three")


class OpenAiServer:
    """An ASGI application, and the port it is served at.

    Attributes:
        names: of the models that it lists.
        token: that it wants; "" for none.
        fault: what is wrong with it, see `_answer`.
        answer: to each question, where the fault is a status.
        request_id: that whole answers have as header; b"" for none.
        asked: the documents of questions, without those of checks.
        step: is waited for before each part of a stream but the first, where a test sets it.
        gone: set when a client left in the middle of a stream.
        certificate: that it speaks TLS with.
    """

    def __init__(self, *names: str, certificate: CertificateFiles | None = None) -> None:
        self.certificate = certificate
        self.names = names or ("Qwen2.5",)
        self.token = ""
        self.fault = ""
        self.answer: Any = {"error": {"message": "no luck"}}
        self.request_id = b""
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.step: asyncio.Queue[None] | None = None
        self.gone = asyncio.Event()
        self.port = 0
        self._server: uvicorn.Server | None = None

    @property
    def url(self) -> str:
        scheme = "https" if self.certificate else "http"
        return f"openai+{scheme}://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        """Listen, on the port of before if there was one."""
        files = self.certificate
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            log_config=None,
            lifespan="off",
            ssl_certfile=files and files.cert,
            ssl_keyfile=files and files.key,
        )
        config.load()
        listening = socket.create_server(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup([listening])

    async def stop(self) -> None:
        """Listen no longer, and end all connections."""
        assert self._server is not None
        self.abort()
        self._server.force_exit = True
        await self._server.shutdown()

    def abort(self) -> None:
        """End all connections in the middle of what they are at."""
        assert self._server is not None
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {k.decode(): v.decode() for k, v in scope["headers"]}
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        document = json.loads(body) if body else {}
        is_check = document.get("messages") == [{"role": "user", "content": "ping"}]
        if document and not is_check:
            self.asked.append(document)
            self.headers.append(headers)
        if self.token and headers.get("authorization") != f"Bearer {self.token}":
            await _send(send, 401, {"error": {"message": "wrong token"}})
        elif self.fault == "silent" or (self.fault == "stuck" and document):
            # The client ends it.
            while (await receive())["type"] != "http.disconnect":
                pass
        elif self.fault.startswith("html"):
            await _send(send, int(self.fault.removeprefix("html") or 200), "<html>")
        elif self.fault.isdigit() and document:
            await _send(send, int(self.fault), self.answer)
        elif document.get("stream"):
            await self._stream(receive, send)
        else:
            await _send(send, 200, self._whole(scope["path"]), self.request_id)

    def _whole(self, path: str) -> dict[str, Any]:
        if path == "/v1/models":
            data = [{"id": n, "object": "model"} for n in self.names]
            return {"object": "list", "data": data}
        if path == "/v1/embeddings":
            vector = {"index": 0, "embedding": [0.5], "object": "embedding"}
            return {"object": "list", "data": [vector]}
        message = {"role": "assistant", "content": "".join(WORDS)}
        choice = {"index": 0, "message": message, "text": message["content"]}
        return {"id": "1", "model": self.names[0], "choices": [choice], "created": 0}

    async def _stream(self, receive: Any, send: Any) -> None:
        watch = asyncio.create_task(self._watch(receive))
        try:
            await send(_start(200, b"text/event-stream"))
            for number, word in enumerate(WORDS):
                if number and self.step is not None:
                    await self.step.get()
                if number == 1 and self.fault == "dies":
                    self.abort()
                    return
                delta = {"index": 0, "delta": {"content": word}, "finish_reason": None}
                event = {"id": "1", "created": 0, "choices": [delta]}
                await send(_part(b"data: %b\n\n" % json.dumps(event).encode()))
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        finally:
            watch.cancel()

    async def _watch(self, receive: Any) -> None:
        if (await receive())["type"] == "http.disconnect":
            self.gone.set()


@contextlib.asynccontextmanager
async def openai_server(
    *names: str, certificate: CertificateFiles | None = None
) -> AsyncIterator[OpenAiServer]:
    """One that listens."""
    server = OpenAiServer(*names, certificate=certificate)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def _start(status: int, content_type: bytes) -> dict[str, Any]:
    headers = [(b"content-type", content_type)]
    return {"type": "http.response.start", "status": status, "headers": headers}


def _part(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _send(send: Any, status: int, document: Any, request_id: bytes = b"") -> None:
    start = _start(status, b"application/json")
    start["headers"] += [(b"x-request-id", request_id)] if request_id else []
    await send(start)
    body = document.encode() if isinstance(document, str) else json.dumps(document).encode()
    await send({"type": "http.response.body", "body": body})
