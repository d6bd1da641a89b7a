"""What a call asks of its connection."""

import asyncio
from typing import TYPE_CHECKING, Protocol

from services.grpc_server.frame_writer import FrameWriter
from services.grpc_server.server_options import ServerOptions

if TYPE_CHECKING:
    from services.grpc_server.call import Call


class ConnectionCallbacks(Protocol):
    """The connection of a call."""

    writer: FrameWriter
    peer: str
    options: ServerOptions

    def stream_closed(self, call: "Call") -> None:
        """The stream is over."""
        ...

    def reset_stream(self, call: "Call") -> None:
        """The stream shall end, whatever is pending of it."""
        ...

    def stop_reading(self, call: "Call") -> None:
        """Nothing more may be read into the memory of its request."""
        ...

    def handler_cancelled(self, task: "asyncio.Task[None]") -> None:
        """Whatever the handler still does, nobody waits for it."""
        ...

    def pay_answer(self) -> None:
        """One answer of several goes out."""
        ...
