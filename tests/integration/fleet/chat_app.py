"""A Ray Serve application that speaks OpenAI's protocol: its only answer is an argument."""

import json
from collections.abc import AsyncIterator
from typing import Any

from ray import serve
from ray.serve import Application
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


class Chat:
    """Says its words, one after another."""

    def __init__(self, name: str, words: str) -> None:
        self._name = name
        self._words = words.split()

    async def models(self, request: Request) -> Response:
        """Which there are."""
        del request
        return JSONResponse({"object": "list", "data": [{"id": self._name, "object": "model"}]})

    async def completions(self, request: Request) -> Response:
        """The words, in an event for each where the client asks for a stream."""
        asked = await request.json()
        if asked["model"] != self._name:
            return JSONResponse({"error": {"message": "no such model"}}, 404)
        if asked.get("stream"):
            return StreamingResponse(self._events(), media_type="text/event-stream")
        message = {"role": "assistant", "content": " ".join(self._words)}
        return JSONResponse(self._answer("chat.completion", message=message))

    async def _events(self) -> AsyncIterator[str]:
        for word in self._words:
            part = self._answer("chat.completion.chunk", delta={"content": word})
            yield f"data: {json.dumps(part)}\n\n"
        yield "data: [DONE]\n\n"

    def _answer(self, kind: str, **said: Any) -> dict[str, Any]:
        choice = {"index": 0, "finish_reason": None} | said
        return {"id": "1", "object": kind, "created": 1, "model": self._name, "choices": [choice]}


def build(args: dict[str, str]) -> Application:
    """As an import path names it; `args` are the model's name and its words."""

    def app() -> Starlette:
        chat = Chat(args["name"], args["words"])
        return Starlette(
            routes=[
                Route("/v1/models", chat.models),
                Route("/v1/chat/completions", chat.completions, methods=["POST"]),
            ]
        )

    @serve.deployment(ray_actor_options={"num_cpus": 0})
    @serve.ingress(app)
    class Served:
        """Its replicas."""

    return Served.bind()
