"""Tokens and permissions, with an unmodified Triton client against a real gateway."""

import base64
import json
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import yaml
from tritonclient.utils import InferenceServerException

from services.contracts.errors import UnauthenticatedError
from services.contracts.security.watched_file import WatchedFile
from services.gateway.access.gate import Gate
from services.gateway.access.static_tokens import new_token, token_hash
from tests.integration.gateway.answers import Inputs
from tests.integration.gateway.issuer import Issuer
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.raw_client import RawClient

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

READER, OTHER, BOSS = new_token(), new_token(), new_token()
# Claims of lists within lists, deeper than Python can read.
DEEP = ".".join(base64.urlsafe_b64encode(part).decode() for part in (b"{}", b"[" * 3000, b"s"))


def entry(name: str, token: str, models: list[str], *verbs: str) -> dict[str, Any]:
    """A token's place in the access file."""
    grants = [{"verbs": list(verbs), "models": models}]
    return {"name": name, "sha256": token_hash(token), "grants": grants}


def bearer(token: str) -> dict[str, str]:
    """The header that carries a token."""
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture
def access_file(tmp_path: Path, issuer: Issuer) -> Path:
    path = tmp_path / "access.yaml"
    grants = [{"verbs": ["infer"], "models": ["ec*"]}]
    trusted = {
        "issuer": "https://issuer.test",
        "audience": "smelt",
        "jwks": issuer.url,
        "roles": {"reader": grants},
    }
    tokens = [
        entry("reader", READER, ["ech?"], "infer"),
        entry("other", OTHER, ["other"], "infer"),
        entry("boss", BOSS, ["*"], "admin"),
    ]
    path.write_text(yaml.safe_dump({"tokens": tokens, "issuers": [trusted]}))
    return path


@pytest.fixture
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates that look at their file with each request."""
    monkeypatch.setattr(
        "services.gateway.access.gate.WatchedFile", partial(WatchedFile, period_s=0)
    )


@pytest.fixture
async def guarded_fleet(echo_fleet: "Fleet", access_file: Path, looks_always: None) -> "Fleet":
    await echo_fleet.start_gateway(access_file=access_file)
    await echo_fleet.until_ready("r1", "r2")
    return echo_fleet


async def refusal(fleet: "Fleet", inputs: Inputs, headers: dict[str, str] | None) -> str:
    """Status and words of a request that is refused."""
    client = await fleet.client()
    with pytest.raises(InferenceServerException) as caught:
        await client.infer("echo", inputs(), headers=headers)
    return f"{caught.value.status()} {caught.value.message()}"


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        (None, "UNAUTHENTICATED the request has no token; send metadata 'authorization: Bearer"),
        ({"authorization": "Basic eDp5"}, "UNAUTHENTICATED expected 'authorization: Bearer TOKEN'"),
        ({"authorization": "Bearer "}, "UNAUTHENTICATED expected"),
        (bearer("made-up"), "UNAUTHENTICATED the token is neither a known one nor a JWT"),
        (bearer(DEEP), "UNAUTHENTICATED the token is neither"),
        (bearer(OTHER), "PERMISSION_DENIED 'other' may not do this: it needs 'infer' on model"),
        (bearer(BOSS), "PERMISSION_DENIED 'boss' may not do this"),
    ],
)
async def test_nobody_infers_without_the_permission(
    guarded_fleet: "Fleet", inputs: Inputs, headers: dict[str, str] | None, words: str
) -> None:
    said = await refusal(guarded_fleet, inputs, headers)
    assert words in said.replace("StatusCode.", "")
    assert sum(replica.num_requests for replica in guarded_fleet.replicas.values()) == 0
    code = said.removeprefix("StatusCode.").partition(" ")[0]
    labels = {"model": "", "version": "", "code": code}
    await guarded_fleet.until_metric(1, "smelt_requests_total", **labels)


@pytest.mark.parametrize("spaces", ["", " ", "  "])
async def test_a_known_token_infers_again_and_again(
    guarded_fleet: "Fleet", inputs: Inputs, spaces: str
) -> None:
    """C++ clients send the space behind the colon of `-H "authorization: Bearer T"` too."""
    client = await guarded_fleet.client()
    headers = {"authorization": f"{spaces}Bearer {spaces}{READER}"}
    for _ in range(3):
        answer = await client.infer("echo", inputs(2.0), headers=headers)
        assert answer.as_numpy("y").tolist() == [[2.0] * 4]


@pytest.mark.parametrize(
    ("token", "code"),
    [(READER, "INVALID_ARGUMENT"), ("made-up", "UNAUTHENTICATED")],
    # A token is drawn anew by each process, and names of tests must be the same in all.
    ids=["known", "unknown"],
)
async def test_bytes_that_are_no_question_are_refused_to_whoever_is_known(
    guarded_fleet: "Fleet", token: str, code: str
) -> None:
    async with grpc.aio.insecure_channel(guarded_fleet.url) as channel:
        ask = channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(b"\x0a\x05ab", metadata=tuple(bearer(token).items()), timeout=30)
    assert caught.value.code() is grpc.StatusCode[code]


async def test_what_load_balancers_ask_needs_no_token(guarded_fleet: "Fleet") -> None:
    client = await guarded_fleet.client()
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert (await client.get_server_metadata()).name == "smelt"


async def test_questions_about_a_model_are_for_those_who_may_use_it(
    guarded_fleet: "Fleet",
) -> None:
    client = await guarded_fleet.client()
    for ask in (client.get_model_metadata, client.get_model_config, client.is_model_ready):
        assert await ask("echo", headers=bearer(READER))
        assert await ask("echo", headers=bearer(BOSS))
        with pytest.raises(InferenceServerException, match="any verb on model 'echo'"):
            await ask("echo", headers=bearer(OTHER))
        with pytest.raises(InferenceServerException, match="no token"):
            await ask("echo")
    assert await client.get_inference_statistics(headers=bearer(BOSS))
    with pytest.raises(InferenceServerException, match="all models at once"):
        await client.get_inference_statistics(headers=bearer(READER))


@pytest.mark.parametrize(
    ("token", "listed"),
    [(READER, ["echo"]), (BOSS, ["echo"]), (OTHER, [])],
    ids=["of the model", "of all", "of another"],
)
async def test_the_index_has_the_models_of_which_a_caller_may_ask(
    guarded_fleet: "Fleet", token: str, listed: list[str]
) -> None:
    client = await guarded_fleet.client()
    index = await client.get_model_repository_index(headers=bearer(token))
    assert sorted({each.name for each in index.models}) == listed
    with pytest.raises(InferenceServerException, match="no token"):
        await client.get_model_repository_index()


async def test_a_token_of_the_issuer_is_believed_and_its_keys_are_read_once(
    guarded_fleet: "Fleet", inputs: Inputs, issuer: Issuer
) -> None:
    client = await guarded_fleet.client()
    for claims in ({}, {"roles": "reader writer"}, {"aud": "smelt"}):
        answer = await client.infer("echo", inputs(), headers=bearer(issuer.token(**claims)))
        assert answer.as_numpy("y").shape == (1, 4)
    assert issuer.num_reads == 1


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"iss": "https://else.test"}, "UNAUTHENTICATED the token's issuer"),
        ({"aud": "others"}, "UNAUTHENTICATED the token is not valid: invalid_claim"),
        ({"exp": 1}, "UNAUTHENTICATED the token is not valid: expired_token"),
        ({"exp": None}, "UNAUTHENTICATED the token is not valid: missing_claim"),
        ({"exp": "tomorrow"}, "UNAUTHENTICATED the token is not valid"),
        ({"nbf": 99999999999}, "UNAUTHENTICATED the token is not valid"),
        ({"roles": []}, "PERMISSION_DENIED 'ada' may not do this"),
        ({"roles": None, "sub": None}, "PERMISSION_DENIED 'unnamed' may not do this"),
        ({"roles": [], "sub": "half \ud800"}, r"PERMISSION_DENIED 'half \ud800' may not do this"),
        ({"roles": 7}, "UNAUTHENTICATED the token is not valid"),
    ],
)
async def test_a_wrong_claim_is_named(
    guarded_fleet: "Fleet", inputs: Inputs, issuer: Issuer, claims: dict[str, Any], words: str
) -> None:
    said = await refusal(guarded_fleet, inputs, bearer(issuer.token(**claims)))
    assert words in said.replace("StatusCode.", "")


async def test_a_token_that_somebody_else_signed_is_refused(
    guarded_fleet: "Fleet", inputs: Inputs, issuer: Issuer
) -> None:
    client = await guarded_fleet.client()
    await client.infer("echo", inputs(), headers=bearer(issuer.token()))
    forger = Issuer()
    said = await refusal(guarded_fleet, inputs, bearer(forger.token()))
    assert "UNAUTHENTICATED the token is not valid: bad_signature" in said


async def test_keys_that_cannot_be_had_stop_only_the_issuers_tokens(
    guarded_fleet: "Fleet", inputs: Inputs, issuer: Issuer
) -> None:
    issuer.is_broken = True
    said = await refusal(guarded_fleet, inputs, bearer(issuer.token()))
    assert f"UNAVAILABLE the keys of the token's issuer are not available from {issuer.url}" in said
    client = await guarded_fleet.client()
    assert await client.infer("echo", inputs(), headers=bearer(READER))


async def test_a_token_that_is_taken_out_of_the_file_is_refused(
    guarded_fleet: "Fleet", inputs: Inputs, access_file: Path
) -> None:
    client = await guarded_fleet.client()
    await client.infer("echo", inputs(), headers=bearer(READER))
    document = document_of(access_file)
    replace(access_file, "tokens: 7")
    assert await client.infer("echo", inputs(), headers=bearer(READER))
    del document["tokens"][0]
    replace(access_file, yaml.safe_dump(document))
    assert "UNAUTHENTICATED" in await refusal(guarded_fleet, inputs, bearer(READER))


def document_of(path: Path) -> dict[str, Any]:
    """What the access file says."""
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


def replace(path: Path, text: str) -> None:
    """Put another file in its place, as rotated secrets are."""
    newer = path.with_suffix(".new")
    newer.write_text(text)
    newer.replace(path)


async def test_a_token_of_a_withdrawn_key_is_believed_no_longer_than_keys_are(
    access_file: Path, issuer: Issuer
) -> None:
    now_s = [time.time()]
    gate = Gate(access_file, clock=lambda: now_s[0])
    metadata = [("authorization", f"Bearer {issuer.token(exp=int(now_s[0]) + 10**6)}")]
    known = await gate.caller_of(metadata)
    assert known.expires_at_s <= now_s[0] + 300
    assert await gate.caller_of(metadata) is known
    now_s[0] += 301
    assert await gate.caller_of(metadata) is not known


@pytest.mark.usefixtures("looks_always")
async def test_a_file_that_cannot_be_read_once_is_read_again(
    access_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A token that was taken away is refused, though what kept us from reading shows nowhere."""
    gate, metadata = Gate(access_file), [("authorization", f"Bearer {READER}")]
    document = document_of(access_file)
    del document["tokens"][0]
    replace(access_file, yaml.safe_dump(document))
    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", lambda _: Path("/nowhere").read_text())
        for _ in range(2):
            assert (await gate.caller_of(metadata)).name == "reader"
    assert caplog.text.count("keeping the previous one") == 1
    with pytest.raises(UnauthenticatedError):
        await gate.caller_of(metadata)


async def test_whatever_fails_at_the_gate_fails_one_request_of_a_stream(
    guarded_fleet: "Fleet", inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller_of, num_asked = Gate.caller_of, 0

    async def fail_second(gate: Gate, metadata: Any) -> Any:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 3:  # the first is the stream's own
            raise TypeError("a fault of ours")
        return await caller_of(gate, metadata)

    monkeypatch.setattr(Gate, "caller_of", fail_second)
    client = await guarded_fleet.client()

    async def ask() -> AsyncIterator[dict[str, Any]]:
        for number in range(3):
            yield {"model_name": "echo", "inputs": inputs(), "request_id": str(number)}

    said = [error async for _, error in client.stream_infer(ask(), headers=bearer(READER))]
    assert [error is None for error in said] == [True, False, True]
    assert "internal error; request id" in str(said[1])


@pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata"])
async def test_a_large_request_without_a_token_is_refused_before_it_has_come(
    guarded_fleet: "Fleet", method: str, tmp_path: Path, access_file: Path
) -> None:
    log = tmp_path / "access.log"
    await guarded_fleet.start_gateway(access_file=access_file, access_log=str(log))
    client = await RawClient.dial(guarded_fleet.gateway.port)
    fields = [(":path", f"/inference.GRPCInferenceService/{method}")]
    fields += [each for each in f.request_fields() if each[0] != ":path"]
    sent = f.message(bytes(3 << 20))[: 1 << 20]
    answer = await client.ask(f.headers(1, sorted(fields)), f.body(1, sent, is_last=False))
    client.close()
    assert answer.status == grpc.StatusCode.UNAUTHENTICATED.value[0]
    assert "send%20metadata" in (said := answer.trailers["grpc-message"]) or "send metadata" in said
    if method == "ModelInfer":
        labels = {"model": "", "version": "", "code": "UNAUTHENTICATED"}
        await guarded_fleet.until_metric(1, "smelt_requests_total", **labels)
        await guarded_fleet.gateway.stop()
        (line,) = map(json.loads, log.read_text().splitlines())
        assert (line["rpc"], line["code"]) == ("ModelInfer", "UNAUTHENTICATED")


async def test_load_balancers_large_questions_need_no_token_either(
    guarded_fleet: "Fleet",
) -> None:
    async with grpc.aio.insecure_channel(guarded_fleet.url) as channel:
        ask = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(bytes(3 << 20), timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
