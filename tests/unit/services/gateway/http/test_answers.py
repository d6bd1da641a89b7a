"""HTTP's statuses, and encodings that clients accept."""

import asyncio
import gzip
import json
import zlib

import grpc
import pytest

from services.gateway.api.status_codes import STATUS_BY_ERROR
from services.gateway.http.answers import (
    HTTP_STATUS,
    HttpAnswer,
    compressed,
    json_with_rows,
    refused_answer,
)

BODY = b"0123456789" * 500


def test_every_status_of_an_error_has_its_own_of_http() -> None:
    assert set(STATUS_BY_ERROR.values()) - HTTP_STATUS.keys() == {grpc.StatusCode.INTERNAL}
    assert refused_answer(grpc.StatusCode.INTERNAL, "why").status == 500


async def test_rows_of_an_answer_leave_turns_to_other_requests() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(count())
    rows = [{"index": index, "numbers": [0.5] * 10_000} for index in range(40)]
    found = json.loads(await json_with_rows({"object": "list"}, "data", rows))
    others.cancel()
    assert found == {"object": "list", "data": rows}
    assert turns >= 20
    assert json.loads(await json_with_rows({"a": 1}, "data", [])) == {"a": 1, "data": []}


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip, deflate", "gzip"),
        ("deflate", "deflate"),
        ("gzip;q=0.5", "gzip"),
        ("gzip;q=0, deflate", "deflate"),
        ("gzip;q=0", None),
        ("gzip;q=0.0", None),
        ("br, zstd", None),
        ("identity", None),
        ("x-gzip-not", None),
        ("br , GZIP ; q=1", "gzip"),
        # What goes back in the field, as expressions do, would take hours for these.
        ("gzip" + " " * 1_000_000 + "x", None),
        ("gzip;q=1" + " " * 1_000_000 + "x, deflate;q=0", "gzip"),
    ],
    ids=range(12),
)
async def test_encodings_that_are_accepted(accepted: str, encoding: str | None) -> None:
    answer = await compressed(HttpAnswer(BODY), accepted)
    assert dict(answer.headers).get(b"content-encoding") == (encoding and encoding.encode())
    unpack = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[encoding]
    assert unpack(answer.body) == BODY


async def test_small_answers_are_sent_as_they_are_and_large_ones_compressed_elsewhere() -> None:
    small = HttpAnswer(b"small")
    assert await compressed(small, "gzip") == small
    large = await compressed(HttpAnswer(BODY * 20), "gzip")
    assert gzip.decompress(large.body) == BODY * 20
