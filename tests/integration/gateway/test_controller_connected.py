"""Whether a gateway hears its controller, as its metrics say, and what it then makes of it."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tritonclient.grpc import InferInput

from services.gateway.routing.controller_watch import ControllerWatch
from services.pb import fleet_v1_pb2 as fleet
from services.telemetry.catalog import CONTROLLER_CONNECTED

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet


async def test_a_controller_that_goes_and_comes_shows(echo_fleet: "Fleet") -> None:
    await echo_fleet.until_metric(1, CONTROLLER_CONNECTED.name)
    await echo_fleet.controller.stop()
    await echo_fleet.until_metric(0, CONTROLLER_CONNECTED.name)
    await echo_fleet.controller.start()
    await echo_fleet.until_metric(1, CONTROLLER_CONNECTED.name)


async def test_a_bad_report_harms_no_other_replica(
    echo_fleet: "Fleet", inputs: Callable[..., list[InferInput]]
) -> None:
    """Nor does it end the watch: what comes after it is seen."""
    client = await echo_fleet.client()
    bad = echo_fleet.controller.snapshot.replicas.add(replica_id="bad", model_name="echo")
    bad.device_facts_json, bad.state = b"[" * 200_000, fleet.REPLICA_STATE_READY
    bad.addresses.extend(["", "unix:", ":::", "\n:99999999999"])
    echo_fleet.report_of("r1").device_facts_json = b'{"generation": ' + b"[" * 200_000
    await echo_fleet.add_replica("r3")
    await echo_fleet.until_ready("r1", "r2", "r3")
    assert echo_fleet.endpoints()["r1"].replica.generation == ""
    await client.infer("echo", inputs())
    await echo_fleet.until_metric(1, CONTROLLER_CONNECTED.name)


async def test_a_controller_whose_host_is_slow_to_connect_is_reached(echo_fleet: "Fleet") -> None:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forwarding.add(asyncio.current_task())
        with closing(writer):
            # Longer than any pause between connects: a try may not be bound by those.
            await asyncio.sleep(2)
            source, sink = await asyncio.open_connection("127.0.0.1", echo_fleet.controller.port)
            with closing(sink):
                await asyncio.gather(_copy(reader, sink), _copy(source, writer))

    forwarding = set[asyncio.Task[None] | None]()
    has_taken = asyncio.Event()
    async with await asyncio.start_server(forward, "127.0.0.1") as slow:
        address = f"127.0.0.1:{slow.sockets[0].getsockname()[1]}"
        watch = ControllerWatch(address, "another", lambda _: has_taken.set())
        watching = asyncio.create_task(watch.run())
        async with asyncio.timeout(30):
            await has_taken.wait()
        watching.cancel()
        # A connection that is left over would fail another test.
        for each in filter(None, forwarding):
            each.cancel()
        await asyncio.gather(watching, *filter(None, forwarding), return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)


async def test_a_snapshot_that_cannot_be_taken_does_not_end_the_watch(
    echo_fleet: "Fleet", caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[int] = []
    has_taken = asyncio.Event()

    def take(snapshot: fleet.FleetSnapshot) -> None:
        if not taken:
            taken.append(0)
            echo_fleet.controller.publish()
            raise RecursionError("of whatever kind")
        taken.append(snapshot.revision)
        has_taken.set()

    watch = ControllerWatch(f"127.0.0.1:{echo_fleet.controller.port}", "another", take)
    watching = asyncio.create_task(watch.run())
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(30):
            await has_taken.wait()
    watching.cancel()
    assert "rejected; keeping the last one" in caplog.text
