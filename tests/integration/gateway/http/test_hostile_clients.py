"""Clients that break rules at the HTTP port: honest errors, and bounded memory and time."""

import asyncio
import gzip
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from services.grpc_server.limits import Limits
from tests.integration.gateway.http.conftest import with_http
from tests.integration.gateway.http.raw_requests import document, post, send

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not JSON"),
        (b"9" * 100_000, "not JSON"),
        (b"[]", "the request: expected an object, got list"),
        (b"{}", "inputs: expected an array, got nothing"),
        (b'{"inputs":[1]}', "input 0, all of it: expected an object"),
        (document(name=None), "input 0, name: expected a string, got nothing"),
        (document(name="\ud800"), "no form in UTF-8"),
        (document(shape=[1, 4.0]), "integers of 64 bits, got 4.0"),
        (document(shape=[2**63]), "integers of 64 bits"),
        (document(shape=[True, 4]), "integers of 64 bits"),
        (document(shape=[2**62] * 300), "at most 32 dimensions, got 300"),
        (document(datatype="FP4"), "datatype: expected one of BOOL"),
        (document(data=[1, 2, 3]), "expected 4 values for shape [1, 4], got 3"),
        (document(data=[[1, 2], 3, 4]), "mixes arrays and values"),
        (document(data=[1, 2, 3, "4"]), "has values of type str"),
        (document(data=[1, 2, 3, None]), "has values of type NoneType"),
        (document(datatype="INT8", data=[1, 2, 3, 400]), "out of bounds"),
        (document(datatype="INT64", data=[1, 2, 3, 4.5]), "has values of type float"),
        (document(datatype="BOOL"), "has values of type int"),
        (document(parameters={"a": []}), "parameter 'a': expected a boolean"),
        (document(parameters={"binary_data_size": -1}), "expected a size, got -1"),
        (document(parameters={"binary_data_size": 2**70}), "expected a size"),
        (document(parameters={"binary_data_size": 16}), "expected 16 bytes"),
        (document(parameters={"binary_data_size": "16"}), "expected a size"),
        (b'{"inputs":[],"outputs":[{}]}', "requested output 0, name"),
    ],
)
async def test_malformed_documents_are_refused_with_the_reason(
    http_fleet: "Fleet", body: bytes, why: str
) -> None:
    status, answer = await send(http_fleet, post(body))
    assert status == 400
    assert why in answer["error"]
    await http_fleet.until_metric(
        1, "smelt_requests_total", model="", version="", code="INVALID_ARGUMENT"
    )


@pytest.mark.parametrize(
    ("length", "why"),
    [
        ("99999", "is 99999, the body has"),
        ("-1", "expected a number, got '-1'"),
        ("1e3", "expected a number"),
        ("9" * 5000, "expected a number"),
        ("0", "not JSON"),
        ("5", "not JSON"),
    ],
)
async def test_lies_about_the_length_of_json(http_fleet: "Fleet", length: str, why: str) -> None:
    status, answer = await send(
        http_fleet, post(document(), f"Inference-Header-Content-Length: {length}")
    )
    assert status == 400
    assert why in answer["error"]


async def test_bytes_behind_the_tensors_are_refused(http_fleet: "Fleet") -> None:
    head = document(data=None, parameters={"binary_data_size": 16})
    fields = f"Inference-Header-Content-Length: {len(head)}"
    status, answer = await send(http_fleet, post(head + bytes(17), fields))
    assert (status, answer["error"]) == (
        400,
        "binary tensors: expected 16 bytes as their binary_data_size says, got 17",
    )
    assert (await send(http_fleet, post(head + bytes(16), fields)))[0] == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_refused(http_fleet: "Fleet", request_bytes: bytes) -> None:
    assert (await send(http_fleet, request_bytes))[0] == 400


@pytest.mark.parametrize("is_whole", [True, False])
async def test_large_heads_are_refused(http_fleet: "Fleet", is_whole: bool) -> None:
    field = b"X-Long: " + b"x" * 40_000
    for head in (field, b"\r\n".join([b"X-Many: y"] * 2000)):
        start = b"GET /v2 HTTP/1.1\r\nHost: a\r\n" + head
        status, answer = await send(http_fleet, start + (b"\r\n\r\n" if is_whole else b""))
        assert status == 431
        assert "at most 16384 bytes" in answer["error"]


CHUNKED = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_fields_behind_a_body_have_the_same_bound(http_fleet: "Fleet") -> None:
    status, answer = await send(http_fleet, CHUNKED, b"0\r\nX-Long: ", b"x" * 40_000)
    assert status == 431
    assert "at most 16384 bytes" in answer["error"]


async def test_fields_behind_a_body_are_no_part_of_the_head(http_fleet: "Fleet") -> None:
    body = document()
    trailer = b"Inference-Header-Content-Length: 99999\r\n\r\n"
    request = CHUNKED + b"%x\r\n%b\r\n0\r\n" % (len(body), body) + trailer
    assert (await send(http_fleet, request))[0] == 200


async def test_a_body_beyond_the_bound_is_not_read(echo_fleet: "Fleet") -> None:
    fleet = await with_http(echo_fleet, max_message_bytes=4096)
    status, answer = await send(fleet, post(b"", length=5000))
    assert (status, answer["error"]) == (
        413,
        "a body of 5000 bytes: at most 4096 are accepted",
    )
    await fleet.until_metric(
        1, "smelt_requests_total", model="", version="", code="RESOURCE_EXHAUSTED"
    )
    chunks = b"1000\r\n" + b" " * 4096 + b"\r\n"
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await send(fleet, head + chunks * 2))[0] == 413


async def test_json_beyond_its_bound_is_refused(http_fleet: "Fleet") -> None:
    status, answer = await send(http_fleet, post(b" " * (9 << 20)))
    assert status == 400
    assert "at most 8388608 are read" in answer["error"]


@pytest.mark.parametrize(
    "json_bytes",
    [
        b'{"inputs":[' + b"[]," * (1 << 19) + b"0]}",
        b'{"inputs":[' + b"0," * ((1 << 21) + 1) + b"0]}",
        b"{" + b",".join(b'"%x" :0' % number for number in range(1 << 19)) + b',"a":0}',
    ],
)
async def test_json_of_too_many_values_is_refused(http_fleet: "Fleet", json_bytes: bytes) -> None:
    status, answer = await send(http_fleet, post(json_bytes))
    assert status == 400
    assert "at most 2097152 and 524288 are read" in answer["error"]


async def test_a_tensor_has_few_parameters(http_fleet: "Fleet") -> None:
    given = document(parameters={str(number): 0 for number in range(65)})
    status, answer = await send(http_fleet, post(given))
    assert status == 400
    assert "parameters: expected at most 64, got 65" in answer["error"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_bomb_is_refused(echo_fleet: "Fleet", encoding: str) -> None:
    fleet = await with_http(echo_fleet, max_decompressed_bytes=1 << 20)
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    status, answer = await send(fleet, post(pack(bytes(64 << 20)), f"Content-Encoding: {encoding}"))
    assert status == 413
    assert "more than 1048576 bytes" in answer["error"]


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"no gzip", "gzip", 400),
        (gzip.compress(document(), mtime=0)[:-9], "gzip", 400),
        (gzip.compress(document(), mtime=0) + b"more", "gzip", 400),
        (document(), "br", 415),
        (gzip.compress(document(), mtime=0), "GZIP", 200),
    ],
)
async def test_encodings_that_are_not_what_they_say(
    http_fleet: "Fleet", body: bytes, encoding: str, status: int
) -> None:
    assert (await send(http_fleet, post(body, f"Content-Encoding: {encoding}")))[0] == status


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways that wait a second for what is due."""
    short = replace(Limits(), handshake_timeout_s=1.0, stall_timeout_s=1.0)
    monkeypatch.setattr(
        "services.gateway.server_limits.Limits",
        lambda **given: replace(
            Limits(**given),
            handshake_timeout_s=short.handshake_timeout_s,
            stall_timeout_s=short.stall_timeout_s,
        ),
    )


@pytest.mark.parametrize(
    "begun",
    [b"", b"POST /v2/models/echo/infer HT", post(b"{", length=50), post(b"", length=5 << 20)],
)
async def test_slow_clients_are_ended(impatient: None, echo_fleet: "Fleet", begun: bytes) -> None:
    fleet = await with_http(echo_fleet)
    status, answer = await send(fleet, begun)
    assert (status, answer) == (408, {"error": "the request arrived too slowly"})


async def test_drops_of_a_head_do_not_keep_a_connection(
    impatient: None, echo_fleet: "Fleet"
) -> None:
    fleet = await with_http(echo_fleet)
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.gateway.http_port)
    async with asyncio.timeout(20):
        try:
            while not reader.at_eof():
                writer.write(b"X")
                await asyncio.sleep(0.1)
                if await asyncio.wait_for(reader.read(1000), 0.01):
                    break
        except (TimeoutError, ConnectionError):
            pass
    writer.close()


async def test_connections_beyond_the_bound_are_closed(echo_fleet: "Fleet") -> None:
    fleet = await with_http(echo_fleet, max_connections=1)
    _, first = await asyncio.open_connection("127.0.0.1", fleet.gateway.http_port)
    await asyncio.sleep(0.1)
    assert (await send(fleet, post(document())))[0] == 0
    first.close()
    await asyncio.sleep(0.1)
    assert (await send(fleet, post(document())))[0] == 200


async def test_requests_without_memory_are_refused(echo_fleet: "Fleet") -> None:
    fleet = await with_http(echo_fleet, max_upload_bytes=1)
    held = []
    for _ in range(10):
        _, writer = await asyncio.open_connection("127.0.0.1", fleet.gateway.http_port)
        writer.write(post(b" " * (4 << 20), length=(4 << 20) + 1)[:-100])
        await writer.drain()
        held.append(writer)
    await asyncio.sleep(0.5)
    status, answer = await send(fleet, post(b" " * 1_000_000, length=1_000_001))
    assert status == 429
    assert "all of the upload memory" in answer["error"]
    for writer in held:
        writer.close()


async def test_wrong_methods_and_paths(http_fleet: "Fleet") -> None:
    get = b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n"
    assert (await send(http_fleet, get % b"/v2/models/echo/infer"))[0] == 405
    assert (await send(http_fleet, get % b"/v1/embeddings"))[0] == 405
    assert (await send(http_fleet, get % b"/"))[0] == 404
    assert (await send(http_fleet, get % b"/v2/models/echo/nothing"))[0] == 404
    assert (await send(http_fleet, get % b"/v2/models/%2e%2e%2f"))[0] == 404
    assert (await send(http_fleet, get.replace(b"GET", b"POST") % b"/v2"))[0] == 405
