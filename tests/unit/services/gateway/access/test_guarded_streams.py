"""A stream behind the gate."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np

from services.gateway.access.guard import guarded
from services.gateway.api.status_codes import StatusTable
from services.pb import open_inference_v2_pb2 as pb

BODY = pb.ModelInferRequest(model_name="m").SerializeToString()


class _Gate:
    async def caller_of(self, _: object) -> Any:
        """Somebody who may ask anything."""
        return SimpleNamespace(name="somebody", require=lambda *_: None)


async def test_one_that_idles_holds_nothing_of_its_last_request_and_answer() -> None:
    seen: list[weakref.ref[Any]] = []
    is_idle = asyncio.Event()

    def held_by_nobody() -> memoryview:
        array = np.frombuffer(BODY, np.uint8).copy()
        seen.append(weakref.ref(array))
        return array.data

    async def requests() -> AsyncIterator[memoryview]:
        yield held_by_nobody()
        is_idle.set()
        await asyncio.Event().wait()

    async def answer(bodies: AsyncIterator[Any], _: object) -> AsyncIterator[memoryview]:
        async for body in bodies:
            assert bytes(body) == BODY
            del body
            yield held_by_nobody()

    handlers = {"ModelStreamInfer": grpc.stream_stream_rpc_method_handler(answer)}
    gate: Any = _Gate()
    guard = guarded(handlers, gate, StatusTable(), lambda *_: None)
    behaviour: Any = guard["ModelStreamInfer"]
    context = SimpleNamespace(invocation_metadata=tuple, peer=str)
    answers = behaviour.stream_stream(requests(), context)
    assert bytes(await anext(answers)) == BODY
    waiting = asyncio.create_task(anext(answers))
    async with asyncio.timeout(30):
        await is_idle.wait()
    gc.collect()
    assert [each() for each in seen] == [None, None]
    waiting.cancel()
