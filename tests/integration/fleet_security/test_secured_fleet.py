"""A fleet whose processes know each other: all lines by TLS, the controller by token too."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import psutil
import pytest

from services.cli.fleet.control_client import get_fleet, watch_fleet
from services.cli.settings import CliSettings
from services.contracts.errors import NotReadyError
from services.contracts.security.fleet_dialer import FleetDialer
from services.contracts.security.fleet_security import FleetSecuritySettings, FleetTls
from services.gateway.routing.controller_watch import ControllerWatch
from services.pb import fleet_v1_pb2 as fleet
from services.replica.reporting.control_link import ControlLink
from tests.certificates import Authority
from tests.faults.fuzz.world import World, world
from tests.integration.replica.published import assert_answers, ids_of, request_of

INFER = "/inference.GRPCInferenceService/ModelInfer"
CONTROL = "/smelt.fleet.v1.FleetControl/"


@pytest.fixture
def security(tmp_path: Path) -> dict[str, Any]:
    """Settings of a member of the fleet."""
    authority = Authority(tmp_path)
    files = authority.sign("member")
    token = tmp_path / "token"
    token.write_text("the-fleet\nthe-fleet-before\n")
    return {
        "fleet_cert_file": files.cert,
        "fleet_key_file": files.key,
        "fleet_ca_file": authority.cert,
        "fleet_token_file": token,
    }


@pytest.fixture
async def secured(tmp_path: Path, security: dict[str, Any]) -> AsyncIterator[World]:
    """A whole fleet with them; gateway and replica are on two hosts."""
    async with world(tmp_path, **security) as here:
        yield here


def established_to(port: int) -> list[object]:
    """Connections that a port of this process has accepted."""
    return [
        each
        for each in psutil.Process().net_connections("tcp")
        if each.laddr.port == port and each.status == psutil.CONN_ESTABLISHED
    ]


async def asked(settings: CliSettings, controller: str) -> fleet.FleetSnapshot:
    """What a command is told; commands block, and the controller is in this event loop."""
    return await asyncio.to_thread(get_fleet, controller, settings)


async def test_requests_and_commands_go_through(
    secured: World, security: dict[str, Any], tmp_path: Path
) -> None:
    ids = ids_of(2, 5)
    assert_answers(await secured.channel.unary_unary(INFER)(request_of(ids)), ids)
    # The gateway's own connection is to this port, and what the port speaks is TLS 1.3.
    host, port = secured.data_port
    (_,) = established_to(port)
    tls = FleetTls.of(FleetSecuritySettings(**security))
    assert tls is not None
    _, writer = await asyncio.open_connection(
        host, port, ssl=tls.client_context(), server_hostname=""
    )
    assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
    writer.transport.abort()
    settings = CliSettings(home=tmp_path, **security)
    snapshot = await asked(settings, secured.controller)
    assert [replica.model_name for replica in snapshot.replicas] == ["toy"]
    first = await asyncio.to_thread(lambda: next(watch_fleet(secured.controller, 30, settings)))
    assert [model.name for model in first.models] == ["toy"]


@pytest.mark.parametrize("lacks", ["token", "certificate", "all"])
async def test_a_command_that_lacks_something_is_told(
    secured: World, security: dict[str, Any], tmp_path: Path, lacks: str
) -> None:
    words = {
        "token": "wants the fleet's token.*fleet_token_file",
        "certificate": "if it wants the fleet's TLS, set SMELT_FLEET_CERT_FILE",
        "all": "if it wants the fleet's TLS, set SMELT_FLEET_CERT_FILE",
    }[lacks]
    kept = {
        name: path
        for name, path in security.items()
        if lacks != "all" and (name == "fleet_token_file") == (lacks == "certificate")
    }
    with pytest.raises(NotReadyError, match=words):
        await asked(CliSettings(home=tmp_path, **kept), secured.controller)


async def _reports(*, is_welcome: bool) -> AsyncIterator[bytes]:
    """One report of a replica, by whoever is let in.

    A client of grpc.aio whose write meets a call that has just been refused says INTERNAL, and
    loses why it was refused: whoever is not let in is silent until told so.
    """
    if not is_welcome:
        await asyncio.Event().wait()
    yield fleet.ReplicaReport(replica_id="r").SerializeToString()


async def _code_of(
    channel: grpc.aio.Channel, method: str, token: str, *, is_welcome: bool
) -> grpc.StatusCode:
    """What a call with that token is answered; OK at a stream's metadata or first message."""
    said = (("authorization", f"Bearer {token}"),) if token else ()
    call: Any
    if method == "Attach":
        reports = _reports(is_welcome=is_welcome)
        call = channel.stream_stream(CONTROL + method)(reports, metadata=said)
        if not is_welcome:
            return cast("grpc.StatusCode", await call.code())
    elif method == "WatchEndpoints":
        call = channel.unary_stream(CONTROL + method)(b"", metadata=said)
    else:
        call = channel.unary_unary(CONTROL + method)(b"", metadata=said)
    try:
        if method == "Attach":
            await call.initial_metadata()
        else:
            await (anext(aiter(call)) if method == "WatchEndpoints" else call)
    except grpc.aio.AioRpcError as error:
        return error.code()
    call.cancel()
    return grpc.StatusCode.OK


async def test_each_call_is_believed_by_its_token(secured: World, security: dict[str, Any]) -> None:
    dialer = FleetDialer.of(FleetSecuritySettings(**security))
    wanted = dict.fromkeys(("another", "the-fle", ""), grpc.StatusCode.UNAUTHENTICATED)
    wanted |= dict.fromkeys(("the-fleet", "the-fleet-before"), grpc.StatusCode.OK)
    async with dialer.aio_channel(secured.controller) as channel, asyncio.timeout(60):
        for method in ("Attach", "WatchEndpoints", "GetFleet", "Reconcile"):
            found = {
                token: await _code_of(channel, method, token, is_welcome=code is grpc.StatusCode.OK)
                for token, code in wanted.items()
            }
            assert found == wanted, method
        unknown = {
            await _code_of(channel, "Unknown", token, is_welcome=False)
            for token in ("", "the-fleet")
        }
        assert unknown == {grpc.StatusCode.UNIMPLEMENTED}


async def test_the_controllers_name_is_looked_at(
    secured: World, security: dict[str, Any], tmp_path: Path
) -> None:
    for name, is_right in (("127.0.0.1", True), ("another.name", False)):
        settings = CliSettings(home=tmp_path, fleet_server_name=name, **security)
        if is_right:
            assert len((await asked(settings, secured.controller)).replicas) == 1
            continue
        with pytest.raises(NotReadyError, match="controller at 127.0.0.1"):
            await asked(settings, secured.controller)


async def test_replicas_and_gateways_without_a_token_say_so_in_their_logs(
    secured: World, security: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    del security["fleet_token_file"]
    dialer = FleetDialer.of(FleetSecuritySettings(**security))
    link = ControlLink(
        secured.controller,
        lambda: fleet.ReplicaReport(replica_id="stranger"),
        on_engines_changed=lambda _: None,
        dialer=dialer,
    )
    refused = asyncio.Event()
    watch = ControllerWatch(
        secured.controller, "stranger", lambda _: pytest.fail("it was let in"), dialer=dialer
    )
    watched = asyncio.create_task(watch.run())

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.add(record.name)
            if len(seen) == 2:
                refused.set()

    seen: set[str] = set()
    handler, names = (
        Seen(),
        ("services.replica.reporting.control_link", "services.gateway.routing.controller_watch"),
    )
    for name in names:
        logging.getLogger(name).addHandler(handler)
    link.start()
    try:
        async with asyncio.timeout(30):
            await refused.wait()
    finally:
        for name in names:
            logging.getLogger(name).removeHandler(handler)
        watched.cancel()
        await link.close()
    assert caplog.text.count("fleet_token_file") >= 2
    assert len(secured.gateway.endpoints.table.pools) > 0


async def test_a_rotated_token_is_said_and_believed(
    secured: World, security: dict[str, Any], tmp_path: Path
) -> None:
    settings = CliSettings(home=tmp_path, **security)
    await asked(settings, secured.controller)
    security["fleet_token_file"].write_text("a-new-one\nthe-fleet\n")
    async with asyncio.timeout(30):
        while True:  # the controller looks at its file once a second
            try:
                snapshot = await asked(settings, secured.controller)
                break
            except NotReadyError:
                await asyncio.sleep(0.2)
    assert len(snapshot.replicas) == 1
