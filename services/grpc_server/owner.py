"""What a call asks of its connection."""

import asyncio
from typing import TYPE_CHECKING, Protocol

from services.grpc_server.sender import Sender
from services.grpc_server.terms import Terms

if TYPE_CHECKING:
    from services.grpc_server.call import Call


class Owner(Protocol):
    """The connection of a call."""

    sender: Sender
    peer: str
    terms: Terms

    def forget(self, call: "Call") -> None:
        """The stream is over."""
        ...

    def cut(self, call: "Call") -> None:
        """The stream shall end, whatever is pending of it."""
        ...

    def stop_reading(self, call: "Call") -> None:
        """Nothing more may be read into the memory of its request."""
        ...

    def leave(self, task: "asyncio.Task[None]") -> None:
        """Whatever the handler still does, nobody waits for it."""
        ...

    def pay_answer(self) -> None:
        """One answer of several goes out."""
        ...
