"""Streams of requests: each is told of its failure by the task that worked on it."""

import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from services.contracts.kserve.protobuf_wire import varint_bytes
from services.contracts.transport.frames import Payload
from services.gateway.api.status_codes import StatusTable
from services.gateway.api.streaming import FRAME_BYTES, InferenceStreams, framed
from services.pb import open_inference_v2_pb2 as pb
from services.telemetry.logs import REQUEST_ID

CONTEXT: Any = SimpleNamespace(invocation_metadata=tuple, hold=lambda: None)


async def test_an_internal_error_tells_the_id_of_its_own_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(body: Payload, deadline_s: float | None) -> Payload:
        REQUEST_ID.set(pb.ModelInferRequest.FromString(bytes(body)).id)
        raise RuntimeError("a fault of ours")

    async def requests() -> AsyncIterator[bytes]:
        for name in ("first", "second"):
            yield pb.ModelInferRequest(id=name).SerializeToString()

    caplog.set_level(logging.ERROR)
    answers = InferenceStreams(fail, StatusTable()).serve(requests(), None, CONTEXT)
    said = [pb.ModelStreamInferResponse.FromString(each).error_message async for each in answers]
    assert said == [f"internal error; request id {name}" for name in ("first", "second")]
    assert [record.__dict__["request_id"] for record in caplog.records] == ["first", "second"]


def test_the_largest_frame_is_reckoned_with() -> None:
    largest, none = varint_bytes(2**31 - 1), len(framed(b""))
    assert none - 1 + len(largest) == FRAME_BYTES
    assert len(framed(bytes(1 << 14))) - (1 << 14) == none + 2
