"""`smelt events --follow` as a person runs it: it shows what comes, until Ctrl-C or SIGTERM."""

import json
import signal
import subprocess
import sys

import pytest

from services.contracts.events import Event, EventKind
from services.contracts.registry.registry import Registry
from services.contracts.text.moments import timestamp, utc_now
from tests.integration.builds.conftest import ROOT, Place

pytestmark = pytest.mark.usefixtures("forked_children")


def event(mark: str) -> Event:
    return Event(at=timestamp(utc_now()), kind=EventKind.BUILD_STARTED, model="m", mark=mark)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_comes_is_shown_until_a_signal(
    registry: Registry, place: Place, number: signal.Signals
) -> None:
    registry.append_event(event("before"), registry.event_end())
    command = [sys.executable, "-m", "services.cli.main", "events", "--follow", "--json"]
    with subprocess.Popen(
        [*command, "--store", str(place.store)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["mark"] == "before"
        for mark in ("first", "second"):
            registry.append_event(event(mark), registry.event_end())
            assert json.loads(process.stdout.readline())["mark"] == mark
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest, errors) == (0, "", "")
