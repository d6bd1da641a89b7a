"""An API server that answers requests for nodes by a script, and remembers what it was asked.

For what kmock does not have: resource versions, streams that end on purpose, 410.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Self

import aiohttp.web
from lightkube import KubeConfig
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import Cluster, User

from services.replica.closing import stop_accepting

Request = aiohttp.web.BaseRequest
Response = aiohttp.web.StreamResponse
# Gets the request, and what is set when the test is over.
Step = Callable[[Request, asyncio.Event], Awaitable[Response]]


class ScriptedApi:
    """One step for each list or watch of nodes; nothing else exists here."""

    def __init__(self, *steps: Step) -> None:
        self._steps = list(steps)
        self.asked: list[str] = []
        self.is_over = asyncio.Event()
        self._released = asyncio.Event()
        self._port = 0

    async def __aenter__(self) -> Self:
        self._web = aiohttp.web.Server(self._answer)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._web, "127.0.0.1", 0)
        self._port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._released.set()
        await stop_accepting(self._listener)
        for connection in self._web.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await self._web.shutdown(1)

    @property
    def config(self) -> SingleConfig:
        cluster = Cluster(server=f"http://127.0.0.1:{self._port}")
        config = KubeConfig.from_one(cluster=cluster, user=User()).get()
        assert config is not None
        return config

    async def _answer(self, request: Request) -> Response:
        if not request.path.endswith("/nodes"):
            return _status(404)
        version = request.query.get("resourceVersion", "")
        self.asked.append(f"watch {version}" if "watch" in request.query else "list")
        if not self._steps:
            self.is_over.set()
        return await (self._steps.pop(0) if self._steps else silence)(request, self._released)


async def silence(request: Request, released: asyncio.Event) -> Response:
    """Answer a watch with a stream on which nothing happens."""
    response = aiohttp.web.StreamResponse()
    await response.prepare(request)
    await released.wait()
    return response


def listing(version: str, *nodes: dict[str, Any]) -> Step:
    """Answer a list."""

    async def answer(_: Request, released: asyncio.Event) -> Response:
        document = {"metadata": {"resourceVersion": version}, "items": list(nodes)}
        return aiohttp.web.json_response(document)

    return answer


def stream(*events: dict[str, Any], is_broken: bool = False) -> Step:
    """Answer a watch; its end is a clean one, or the connection is cut."""

    async def answer(request: Request, released: asyncio.Event) -> Response:
        response = aiohttp.web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for event in events:
            await response.write(json.dumps(event).encode() + b"\n")
        if is_broken and request.transport is not None:
            request.transport.close()
        return response

    return answer


def refusal(code: int) -> Step:
    """Answer with a status."""

    async def answer(_: Request, released: asyncio.Event) -> Response:
        return _status(code)

    return answer


def event(change: str, node: dict[str, Any], version: str) -> dict[str, Any]:
    """One line of a watch."""
    metadata = node["metadata"] | {"resourceVersion": version}
    return {"type": change, "object": node | {"metadata": metadata}}


def gone() -> dict[str, Any]:
    """The line that says that the version asked for is not remembered."""
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    return {"type": "ERROR", "object": status}


def _status(code: int) -> aiohttp.web.Response:
    return aiohttp.web.json_response({"kind": "Status", "code": code}, status=code)
