"""Parts of one client's request: where one finds no room, it waits while others have it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from services.contracts.errors import OverloadedError
from services.contracts.transport.frames import Payload
from services.gateway.pipeline.holding import HeldRequests
from services.gateway.pipeline.inference import InferenceCall, InferenceHandler


class Parts:
    """What the parts of one request have in common.

    Attributes:
        num_taken: under way or answered.
        turn: of the one that tries again.
    """

    def __init__(self) -> None:
        """No part is sent."""
        self.num_taken = 0
        self.turn = asyncio.Lock()


class PartInference:
    """Has a part wait for room, as the whole request would fail with it, and be sent again.

    Where no part found room, the request is refused as any other is.
    """

    def __init__(self, inner: InferenceHandler, held: HeldRequests) -> None:
        """Put it before a handler.

        Args:
            inner: refuses what is too much.
            held: bounds what waits.
        """
        self._inner = inner
        self._held = held

    def answer(self, call: InferenceCall) -> Coroutine[Any, Any, Payload]:
        """The answer; raises OverloadedError where there was no room for too long."""
        # A coroutine of its own only where it does something: this is part of every request's time.
        return self._inner.answer(call) if call.parts is None else self._in_turn(call.parts, call)

    async def _in_turn(self, parts: Parts, call: InferenceCall) -> Payload:
        try:
            return await self._taken(parts, call)
        except OverloadedError as error:
            if not parts.num_taken:
                raise
            refusal = error
        # One after the other, so that a large request asks as often as a small one.
        async with parts.turn:
            while True:
                await self._held.for_room(call, refusal)
                try:
                    return await self._taken(parts, call)
                except OverloadedError as error:
                    refusal = error

    async def _taken(self, parts: Parts, call: InferenceCall) -> Payload:
        parts.num_taken += 1
        try:
            return await self._inner.answer(call)
        except OverloadedError:
            parts.num_taken -= 1
            raise
