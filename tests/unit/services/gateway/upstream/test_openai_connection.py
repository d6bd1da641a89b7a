"""An answer of an OpenAI server that is read whole."""

from collections.abc import AsyncIterator
from typing import Any, ClassVar, Self

import pytest

from services.contracts.external.external_model import ExternalModel
from services.gateway.upstream.external_connection import ExternalLimits
from services.gateway.upstream.openai_connection import OpenAiConnection, OpenAiRequest


class Piece(bytes):
    """Counts how often its size is asked for."""

    num_asked = 0

    def __len__(self) -> int:
        Piece.num_asked += 1
        return super().__len__()


class Server:
    """A session, an answer, and its content: all that a connection needs of a server."""

    status = 200
    content_type = "application/json"
    headers: ClassVar[dict[str, str]] = {}

    @property
    def content(self) -> "Server":
        return self

    async def post(self, *_: Any, **__: Any) -> "Server":
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def iter_any(self) -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield Piece(b"x")


class Relay:
    """The client's end."""

    path = "/v1/embeddings"
    document: ClassVar[dict[str, Any]] = {}
    body = b""

    def keep(self, _: int, __: dict[str, str], body: bytes) -> None:
        self.body = body


async def test_an_answer_in_many_pieces_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Piece, "num_asked", 0)
    session: Any = Server()
    model = ExternalModel(name="m", version=1, url="openai+http://h/v1", remote_name="m")
    connection = OpenAiConnection(model, ExternalLimits(), session)
    request = OpenAiRequest(b"")
    relay: Any = Relay()
    request.relay = relay
    await connection.infer(request)
    assert relay.body == b"x" * 1000
    assert Piece.num_asked == 1000
