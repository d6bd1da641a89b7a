"""Paths that ask about server and models: each is one RPC."""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from services.gateway.http.answers import HttpAnswer, error_body, json_bytes
from services.gateway.http.fields import Document, optional
from services.gateway.http.responses import plain
from services.pb import open_inference_v2_pb2 as pb

# Of a model: name, version, and what is asked.
MODEL: Final = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(\w+))?")


class Route(NamedTuple):
    """A path.

    Attributes:
        rpc: that answers it.
        request: from the model's name and version, and the body's document.
        answer: from the message.
        method: of HTTP.
    """

    rpc: str
    request: Callable[[str, str, Document], Message]
    answer: Callable[[Any], HttpAnswer]
    method: str = "GET"


def _json(message: Message) -> HttpAnswer:
    return HttpAnswer(json_bytes(plain(message)))


def _whether(what: str) -> Callable[[Any], HttpAnswer]:
    def answer(message: Any) -> HttpAnswer:
        is_so = message.live if isinstance(message, pb.ServerLiveResponse) else message.ready
        return HttpAnswer() if is_so else HttpAnswer(error_body(f"{what} is not ready"), status=503)

    return answer


def _models(message: Any) -> HttpAnswer:
    """As OpenAI lists models: those of which a version is ready."""
    data = [_as_openai(name) for name in sorted({each.name for each in message.models})]
    return HttpAnswer(json_bytes({"object": "list", "data": data}))


def _as_openai(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "smelt"}


def _index(message: Any) -> HttpAnswer:
    return HttpAnswer(json_bytes(plain(message)["models"]))


def _index_request(_: str, __: str, document: Document) -> Message:
    return pb.RepositoryIndexRequest(ready=optional(document, "ready", False))


ROUTES: Final = {
    "/v2": Route("ServerMetadata", lambda *_: pb.ServerMetadataRequest(), _json),
    "/v2/health/live": Route(
        "ServerLive", lambda *_: pb.ServerLiveRequest(), _whether("the server")
    ),
    "/v2/health/ready": Route(
        "ServerReady", lambda *_: pb.ServerReadyRequest(), _whether("the server")
    ),
    "/v2/models/stats": Route("ModelStatistics", lambda *_: pb.ModelStatisticsRequest(), _json),
    "/v2/repository/index": Route("RepositoryIndex", _index_request, _index, "POST"),
    "/v1/models": Route(
        "RepositoryIndex", lambda *_: pb.RepositoryIndexRequest(ready=True), _models
    ),
}
# What OpenAI's clients ask of one model, whose name stands behind it.
ONE_MODEL: Final = "/v1/models/"
AS_OPENAI: Final = Route(
    "ModelMetadata",
    lambda name, version, _: pb.ModelMetadataRequest(name=name, version=version),
    lambda message: HttpAnswer(json_bytes(_as_openai(message.name))),
)
# By what is asked of a model.
OF_MODELS: Final = {
    None: Route("ModelMetadata", lambda n, v, _: pb.ModelMetadataRequest(name=n, version=v), _json),
    "ready": Route(
        "ModelReady", lambda n, v, _: pb.ModelReadyRequest(name=n, version=v), _whether("the model")
    ),
    "config": Route(
        "ModelConfig",
        lambda n, v, _: pb.ModelConfigRequest(name=n, version=v),
        lambda message: _json(message.config),
    ),
    "stats": Route(
        "ModelStatistics", lambda n, v, _: pb.ModelStatisticsRequest(name=n, version=v), _json
    ),
}
