"""What a gateway shows an external server beside the request: whom it trusts, and the trace."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import format_span_id
from tritonclient.utils import InferenceServerException

from services.contracts.external.dial import http_session
from services.controller.external.external_check import found_fault
from services.telemetry.tracing import Tracing
from tests.certificates import Authority
from tests.integration.gateway.conftest import make_inputs
from tests.integration.gateway.external.conftest import add_external, external_model
from tests.integration.gateway.external.kserve_server import KserveServer, kserve_server
from tests.integration.gateway.external.openai_server import OpenAiServer, openai_server
from tests.integration.gateway.http.conftest import run_curl, with_http

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

ASK = ("-d", '{"model":"chat","messages":[]}', "/v1/chat/completions")
TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "tracestate": "vendor=1"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def openai(authority: Authority) -> AsyncIterator[OpenAiServer]:
    async with openai_server(certificate=authority.sign("openai")) as server:
        yield server


@pytest.fixture
async def kserve(authority: Authority) -> AsyncIterator[KserveServer]:
    async with kserve_server(authority.sign("kserve")) as server:
        yield server


async def put_behind(fleet: "Fleet", openai: OpenAiServer, kserve: KserveServer) -> list[str]:
    """A gateway before both, and what the controller's check finds of them."""
    tls = f"grpcs://127.0.0.1:{kserve.port}"
    models = (external_model(openai.url), external_model(tls, "vision", remote_name="resnet"))
    for model in models:
        add_external(fleet, model)
    await with_http(fleet, "external chat/1", "external vision/1")
    async with http_session() as session:
        return [await found_fault(model, session, {}, is_asking=True) for model in models]


async def test_a_server_of_a_trusted_authority_is_asked(
    fleet_of: "Fleet",
    openai: OpenAiServer,
    kserve: KserveServer,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    assert await put_behind(fleet_of, openai, kserve) == ["", ""]
    assert (await run_curl(fleet_of, *ASK)).status == 200
    answer = await (await fleet_of.client()).infer("vision", make_inputs(3.0))
    assert answer.as_numpy("y")[0, 0] == 3.0


async def test_a_server_of_another_authority_gets_no_request(
    fleet_of: "Fleet", openai: OpenAiServer, kserve: KserveServer
) -> None:
    faults = await put_behind(fleet_of, openai, kserve)
    assert all(fault.startswith("unreachable: ") for fault in faults)
    assert "certificate" in faults[0]
    got = await run_curl(fleet_of, *ASK)
    assert (got.status, b"certificate" in got.body) == (503, True)
    with pytest.raises(InferenceServerException, match="cannot be reached") as refused:
        await (await fleet_of.client()).infer("vision", make_inputs())
    assert refused.value.status() == "StatusCode.UNAVAILABLE"
    assert (openai.asked, kserve.metadata) == ([], {})


async def test_the_trace_goes_on_at_the_server(fleet_of: "Fleet") -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, ParentBased(ALWAYS_OFF), "tested")
    async with openai_server() as openai, kserve_server() as kserve:
        add_external(fleet_of, external_model(openai.url))
        add_external(fleet_of, external_model(kserve.url, "vision", remote_name="resnet"))
        await with_http(fleet_of, "external chat/1", "external vision/1", tracing=tracing)
        carried = [word for pair in SAMPLED.items() for word in ("-H", ": ".join(pair))]
        assert (await run_curl(fleet_of, *carried, *ASK)).status == 200
        client = await fleet_of.client()
        await client.infer("vision", make_inputs(), headers=SAMPLED)
        tracing.close()
        spans = exporter.get_finished_spans()
        seen = [openai.headers[0], kserve.metadata]
    assert len(spans) == len(seen) == 2
    for span, headers in zip(spans, seen, strict=True):
        assert span.context
        # The gateway's span is the parent of what the server does.
        assert headers["traceparent"] == f"00-{TRACE}-{format_span_id(span.context.span_id)}-01"
        assert headers["tracestate"] == "vendor=1"
