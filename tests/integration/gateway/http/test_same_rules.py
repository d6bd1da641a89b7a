"""What holds for gRPC's port holds for HTTP's: access, bounds, deadlines, metrics, TLS, drains."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import format_span_id

from services.contracts.errors import OverloadedError
from services.contracts.transport.frames import InferFrame
from services.gateway.access.static_tokens import new_token, token_hash
from services.telemetry.tracing import Tracing, carried_trace
from tests.certificates import Authority
from tests.integration.gateway.http.conftest import Curl, run_curl, with_http

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

REQUEST = '{"id":"7","inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'
INFER = "/v2/models/echo/infer"
INFER_1 = "/v2/models/echo/versions/1/infer"


@pytest.fixture
def token(tmp_path: Path) -> str:
    """Of a caller that may use models named `ech?`, in `access.yaml`."""
    token = new_token()
    grant = {"verbs": ["infer"], "models": ["ech?"]}
    entry = {"name": "reader", "sha256": token_hash(token), "grants": [grant]}
    (tmp_path / "access.yaml").write_text(yaml.safe_dump({"tokens": [entry]}))
    return token


async def test_a_request_passes_the_same_pipeline(http_fleet: "Fleet", curl: Curl) -> None:
    for path in (INFER, INFER_1):
        got = await curl("-d", REQUEST, path)
        assert got.status == 200
        assert json.loads(got.body)["outputs"][0]["data"] == [1.0, 2.0, 3.0, 4.0]
    await http_fleet.until_metric(2, "smelt_requests_total", model="echo", version="1", code="OK")
    assert {f.trace for r in http_fleet.replicas.values() for f in r.frames} == {"7"}


async def test_the_clients_trace_goes_on(http_fleet: "Fleet") -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, ParentBased(ALWAYS_OFF), "tested", share=0.0)
    fleet = await with_http(http_fleet, tracing=tracing)
    parent = ("-H", "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    assert (await run_curl(fleet, *parent, "-d", REQUEST, INFER)).status == 200
    assert (await run_curl(fleet, "-d", REQUEST, INFER)).status == 200
    tracing.close()
    # The other one's client traced nothing.
    (span,) = exporter.get_finished_spans()
    assert span.parent
    assert span.context
    assert format_span_id(span.parent.span_id) == "00f067aa0ba902b7"
    frames = [frame for replica in fleet.replicas.values() for frame in replica.frames]
    carried = [trace for frame in frames if (trace := carried_trace(frame.trace))]
    wanted = f"00-4bf92f3577b34da6a3ce929d0e0e4736-{format_span_id(span.context.span_id)}-01"
    assert [trace.traceparent for trace in carried] == [wanted]


async def test_probes_may_ask_by_head(curl: Curl) -> None:
    for path in ("/v2/health/ready", "/v2/models/echo/ready", "/v1/models"):
        got = await curl("--head", path)
        assert (got.status, got.body.strip()) == (200, b"")
    refused = await curl("--head", INFER)
    assert (refused.status, refused.headers["allow"]) == (405, "POST")


async def test_callers_need_tokens_and_grants(
    echo_fleet: "Fleet", token: str, tmp_path: Path
) -> None:
    fleet = await with_http(echo_fleet, access_file=tmp_path / "access.yaml")
    bearer = ("-H", f"Authorization: Bearer {token}")
    got = await run_curl(fleet, "-d", REQUEST, INFER)
    assert (got.status, got.headers["www-authenticate"]) == (401, "Bearer")
    assert b"send metadata" in got.body
    assert (await run_curl(fleet, *bearer, "-d", REQUEST, INFER)).status == 200
    assert (await run_curl(fleet, *bearer, "-d", REQUEST, "/v2/models/other/infer")).status == 403
    assert (await run_curl(fleet, *bearer, "/v2/models/echo")).status == 200
    assert (await run_curl(fleet, *bearer, "/v2/models/other")).status == 403
    assert (await run_curl(fleet, "/v1/models")).status == 401
    listed = json.loads((await run_curl(fleet, *bearer, "/v1/models")).body)
    assert [each["id"] for each in listed["data"]] == ["echo"]
    assert (await run_curl(fleet, "/v2/models/echo/ready")).status == 401
    assert (await run_curl(fleet, "/v2/health/live")).status == 200
    await fleet.until_metric(
        1, "smelt_requests_total", model="", version="", code="UNAUTHENTICATED"
    )


async def test_a_caller_without_a_token_sends_no_large_body(
    echo_fleet: "Fleet", token: str, tmp_path: Path
) -> None:
    fleet = await with_http(echo_fleet, access_file=tmp_path / "access.yaml")
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.gateway.http_port)
    writer.write(f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n".encode())
    assert b" 401 " in await reader.readline()
    writer.close()


async def test_json_of_a_caller_without_a_token_is_not_parsed(
    echo_fleet: "Fleet", token: str, tmp_path: Path
) -> None:
    fleet = await with_http(echo_fleet, access_file=tmp_path / "access.yaml")
    assert (await run_curl(fleet, "-d", "{", "/v2/repository/index")).status == 401
    bearer = ("-H", f"Authorization: Bearer {token}")
    assert (await run_curl(fleet, *bearer, "-d", "{", "/v2/repository/index")).status == 400
    assert (await run_curl(fleet, *bearer, "-d", "{}", "/v2/repository/index")).status == 200


async def test_beyond_the_bound_a_request_is_told_when_to_try_again(
    echo_fleet: "Fleet",
) -> None:
    fleet = await with_http(echo_fleet)
    for replica in fleet.replicas.values():
        replica.answer = refuse
    got = await run_curl(fleet, "-d", REQUEST, INFER)
    assert (got.status, got.headers["retry-after-ms"], got.headers["retry-after"]) == (
        429,
        "1500",
        "2",
    )
    fleet = await with_http(echo_fleet, overload_as_unavailable=True)
    assert (await run_curl(fleet, "-d", REQUEST, INFER)).status == 503


async def refuse(_: InferFrame) -> bytes:
    """A replica that is full."""
    raise OverloadedError("full", retry_after_s=1.5)


async def test_a_deadline_ends_a_request(http_fleet: "Fleet", curl: Curl) -> None:
    for replica in http_fleet.replicas.values():
        replica.answer = never
    got = await curl("-H", "Grpc-Timeout: 100m", "-d", REQUEST, INFER)
    assert (got.status, json.loads(got.body)) == (504, {"error": "the deadline passed"})
    await http_fleet.until_metric(
        1, "smelt_requests_total", model="echo", version="1", code="DEADLINE_EXCEEDED"
    )
    assert (await curl("-H", "Grpc-Timeout: soon", "-d", REQUEST, INFER)).status == 400


async def never(_: InferFrame) -> bytes:
    """A replica that does not answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_client_that_leaves_cancels_its_request(http_fleet: "Fleet", curl: Curl) -> None:
    for replica in http_fleet.replicas.values():
        replica.answer = never
    with pytest.raises(IndexError):
        await curl("-m", "0.3", "-d", REQUEST, INFER)
    await http_fleet.until_metric(
        1, "smelt_requests_total", model="echo", version="1", code="CANCELLED"
    )


async def test_tls_is_that_of_the_other_port(echo_fleet: "Fleet", tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("gateway")
    fleet = await with_http(echo_fleet, tls_cert_file=files.cert, tls_key_file=files.key)
    trusted = ("--cacert", str(authority.cert))
    got = await run_curl(fleet, *trusted, "-d", REQUEST, INFER, scheme="https")
    assert got.status == 200
    with pytest.raises(IndexError):
        await run_curl(fleet, "-d", REQUEST, INFER)


async def test_a_tls_handshake_counts_as_a_connection(echo_fleet: "Fleet", tmp_path: Path) -> None:
    files = Authority(tmp_path).sign("gateway")
    given = {"tls_cert_file": files.cert, "tls_key_file": files.key, "max_connections": 1}
    fleet = await with_http(echo_fleet, **given)
    address = "127.0.0.1", fleet.gateway.http_port
    _, silent = await asyncio.open_connection(*address)
    second, writer = await asyncio.open_connection(*address)
    async with asyncio.timeout(10):
        assert await second.read() == b""
    silent.close()
    writer.close()


async def test_a_gateway_that_drains_answers_what_it_has(http_fleet: "Fleet", curl: Curl) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()
    replica = http_fleet.replicas["r1"]

    async def answer_late(frame: InferFrame) -> bytes:
        asked.set()
        await may_answer.wait()
        return await replica.echo(frame)

    for each in http_fleet.replicas.values():
        each.answer = answer_late
    answered = asyncio.create_task(curl("-d", REQUEST, INFER))
    await asked.wait()
    stopping = asyncio.create_task(http_fleet.gateway.stop())
    await asyncio.sleep(0.3)
    may_answer.set()
    got = await answered
    assert (got.status, got.headers["connection"]) == (200, "close")
    await stopping


async def test_a_gateway_that_will_drain_says_that_it_is_not_ready(echo_fleet: "Fleet") -> None:
    fleet = await with_http(echo_fleet, drain_notice_s=5)
    assert (await run_curl(fleet, "/v2/health/ready")).status == 200
    stopping = asyncio.create_task(fleet.gateway.stop())
    await asyncio.sleep(0)
    assert (await run_curl(fleet, "/v2/health/ready")).status == 503
    assert (await run_curl(fleet, "-d", REQUEST, INFER)).status == 200
    await stopping
