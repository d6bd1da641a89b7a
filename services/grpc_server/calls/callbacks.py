"""What a call needs of its connection; `Streams` implements it."""

import asyncio
from typing import TYPE_CHECKING, Protocol

from services.grpc_server.http2.frame_writer import FrameWriter
from services.grpc_server.server_options import ServerOptions

if TYPE_CHECKING:
    from services.grpc_server.calls.call import Call


# A protocol, as `Streams` makes the calls: their modules would import each other.
class ConnectionCallbacks(Protocol):
    """The connection of a call."""

    writer: FrameWriter
    peer: str
    options: ServerOptions

    def stream_closed(self, call: "Call") -> None:
        """The last frame of the stream is written."""
        ...

    def reset_stream(self, call: "Call") -> None:
        """Reset the stream, and discard what is pending of its answer."""
        ...

    def stop_reading(self, call: "Call") -> None:
        """Read nothing more into the memory of its request."""
        ...

    def handler_cancelled(self, task: "asyncio.Task[None]") -> None:
        """Count a cancelled handler as a stream until it has ended."""
        ...

    def pay_answer(self) -> None:
        """A message of a stream is sent."""
        ...
