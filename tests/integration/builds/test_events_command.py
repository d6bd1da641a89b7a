"""`smelt events --follow` as a person runs it: it shows what comes, until Ctrl-C."""

import json
import signal
import subprocess
import sys

from services.contracts.build_plan import timestamp, utc_now
from services.contracts.events import Event, EventKind
from services.contracts.registry import Registry
from tests.integration.builds.conftest import ROOT, Place


def event(mark: str) -> Event:
    return Event(at=timestamp(utc_now()), kind=EventKind.BUILD_STARTED, model="m", mark=mark)


def test_what_comes_is_shown_until_ctrl_c(registry: Registry, place: Place) -> None:
    registry.append_event(event("before"))
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
            registry.append_event(event(mark))
            assert json.loads(process.stdout.readline())["mark"] == mark
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest, errors) == (0, "", "")
