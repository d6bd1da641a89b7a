"""What a replica logs of a controller that is away."""

import asyncio
import logging

import pytest

from services.contracts.process.backoff import Backoff
from services.pb import fleet_v1_pb2 as pb
from services.replica.reporting.control_link import ControlLink

NUM_TRIES = 3


@pytest.mark.parametrize(("outage_s", "level"), [(3600.0, logging.DEBUG), (-1.0, logging.WARNING)])
async def test_a_controller_is_missed_after_a_while_and_not_at_the_end_of_a_fleet(
    outage_s: float,
    level: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries = iter(range(1, NUM_TRIES))
    is_tried = asyncio.Event()

    async def pause(_: Backoff) -> None:
        if next(tries, None) is None:
            is_tried.set()
        await asyncio.sleep(0)

    monkeypatch.setattr(Backoff, "pause", pause)
    link = ControlLink(
        "127.0.0.1:1",
        pb.ReplicaReport,
        on_engines_changed=print,
        outage_s=outage_s,
    )
    with caplog.at_level(logging.DEBUG, ControlLink.__module__):
        link.start()
        await is_tried.wait()
        await link.close()
    levels = [r.levelno for r in caplog.records if "attaching again" in r.getMessage()]
    assert len(levels) >= NUM_TRIES
    assert set(levels) == {level}
