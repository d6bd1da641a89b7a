"""A request that is passed on to an external server, and the way of its answer to the client."""

from typing import Final

from services.gateway.http.answers import HttpAnswer
from services.gateway.http.fields import Document
from services.gateway.http.http_call import HttpCall
from services.gateway.upstream.openai_connection import OpenAiRequest
from services.pb import open_inference_v2_pb2 as pb

# Paths of OpenAI that are passed on where the model is an external one.
RELAYED: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})
_UNBUFFERED: Final = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


class Relay:
    """One request, with the client's end of the connection.

    Attributes:
        path, document: of the request.
        answer: the server's own, which is sent whole; None where there is none.
        is_begun: parts of an answer were sent.
        status: of HTTP, for an error; 0 leaves that to the error.
    """

    def __init__(self, call: HttpCall, document: Document) -> None:
        """Nothing is sent yet."""
        self.path = call.path
        self.document = document
        self.answer: HttpAnswer | None = None
        self.is_begun = False
        self.status = 0
        self._send = call.send

    def request(self, model: str, raw: bytes) -> OpenAiRequest:
        """As handlers take it, with the bytes that it came in."""
        message = pb.ModelInferRequest(model_name=model, raw_input_contents=[raw])
        request = OpenAiRequest(message.SerializeToString())
        request.relay = self
        return request

    def keep(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Have the client get a whole answer.

        Args:
            status: of HTTP.
            headers: those that are passed on.
            body: all of it.
        """
        content_type = _field(headers.pop("content-type", "application/json"))
        others = tuple((name.encode(), _field(value)) for name, value in headers.items())
        self.answer = HttpAnswer(body, content_type, status, others)

    def note_status(self, status: int) -> None:
        """Have the error that is raised next be this status of HTTP."""
        self.status = status

    async def begin(self, content_type: str) -> None:
        """Begin an answer in parts."""
        self.is_begun = True
        headers = [(b"content-type", _field(content_type)), *_UNBUFFERED]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, part: bytes) -> None:
        """Send a part; returns once the client keeps up."""
        await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def answered(self) -> HttpAnswer | None:
        """What is still to be sent; None after an answer in parts, which is ended."""
        if self.is_begun:
            await self._send({"type": "http.response.body", "body": b""})
        return self.answer

    async def refused(self, refusal: HttpAnswer) -> HttpAnswer | None:
        """The same where it failed: the server's own refusal, or ours.

        An answer in parts ends with the error as an event, as OpenAI's clients read it.
        """
        if self.is_begun:
            event = b"data: %b\n\n" % refusal.body
            await self._send({"type": "http.response.body", "body": event})
            return None
        return self.answer or refusal._replace(status=self.status or refusal.status)


def _field(value: str) -> bytes:
    """A header's value as the server sent it: it need not be UTF-8."""
    return value.encode(errors="surrogateescape")
