"""When a fleet's model serves, and what a fleet leaves behind when it stops."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from services.cli.fleet import local_fleet, up
from services.cli.fleet.child_process import ProcessSpec
from services.cli.fleet.fleet_file import RunningFleet, make_run_dir
from services.cli.fleet.local_fleet import LocalFleet, StopRequested
from services.cli.fleet.up_options import UpOptions
from services.cli.output.show import INTERRUPTED
from services.cli.settings import CliSettings
from services.contracts.errors import NotReadyError
from services.controller.platform.ray.session_logs import note_session
from services.pb import fleet_v1_pb2 as fleet


def said_of_left(home: Path, what: str) -> str:
    """What a fleet says of the process that it left, when it has stopped."""
    return subprocess.run(
        [sys.executable, "-m", "tests.unit.services.cli.fleet.unreaped_fleet", str(home), what],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()


def test_a_process_that_nobody_reaps_is_not_waited_for(tmp_path: Path) -> None:
    assert said_of_left(tmp_path, "zombie") == "zombie"


def test_a_process_that_does_not_end_is_killed(tmp_path: Path) -> None:
    assert said_of_left(tmp_path, "survivor") == str(-signal.SIGKILL)


@pytest.mark.parametrize(
    ("sent", "is_over_after_demo", "code", "said"),
    [
        (signal.SIGTERM, False, 0, "stopped: smelt down (SIGTERM) ended it\n"),
        # The demo gave no answers.
        (signal.SIGTERM, True, INTERRUPTED, "stopped: smelt down (SIGTERM) ended it\n"),
        (signal.SIGINT, False, INTERRUPTED, "stopped\n"),
    ],
)
def test_a_fleet_that_was_stopped_on_request_did_not_fail(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sent: signal.Signals,
    is_over_after_demo: bool,
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def begin(*_: object, **__: object) -> bool:
        os.kill(os.getpid(), sent)
        raise AssertionError("no signal came")

    monkeypatch.setattr(local_fleet, "ray_spec", begin)
    before = signal.getsignal(signal.SIGTERM)
    # Tests that a shell runs in the background were started with this signal ignored.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        found = up.run_up(
            CliSettings(home=tmp_path),
            UpOptions(grpc_port=0, metrics_port=0),
            is_demo=False,
            is_over_after_demo=is_over_after_demo,
            is_detached=False,
        )
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt)
    assert found == code
    assert capsys.readouterr().out.endswith(said)


def test_what_a_killed_fleet_left_of_its_ray_is_gone_once_the_next_one_begins(
    tmp_path: Path,
) -> None:
    settings = CliSettings(home=tmp_path)
    make_run_dir(settings.run_dir)
    session = tmp_path / "ray" / "session_1"
    (session / "logs").mkdir(parents=True)
    note_session(settings.run_dir, session)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with LocalFleet(settings, UpOptions(grpc_port=0, metrics_port=0)):
            assert not session.exists()
    finally:
        signal.signal(signal.SIGTERM, before)


class Started(NamedTuple):
    """A process of a fleet that is up at once, whatever it is."""

    name: str
    spec: ProcessSpec
    log_path: Path

    def start(self) -> dict[str, object]:
        return {"address": "127.0.0.1:1", "metrics_port": 1}

    def update_settings(self, **_: object) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("error", "withdrawn", "said"),
    [
        (StopRequested(), ["services.controller.withdraw"], ""),
        (NotReadyError("no port"), [], "what was deployed on Ray at 10.0.0.1:6379 stays there"),
    ],
    ids=["stopped", "failed"],
)
def test_a_start_that_ends_after_its_controller_deployed_leaves_nothing_when_it_was_stopped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    withdrawn: list[str],
    said: str,
) -> None:
    run: list[str] = []

    class Withdrawal:
        def __init__(self, spec: ProcessSpec, *_: object) -> None:
            self.spec = spec

        def run(self, _: float) -> bool:
            run.append(self.spec.module)
            return True

    def end(*_: object) -> None:
        raise error

    monkeypatch.setattr(local_fleet, "SupervisedProcess", lambda *given, **_: Started(*given[:3]))
    monkeypatch.setattr(local_fleet, "ChildProcess", Withdrawal)
    monkeypatch.setattr(local_fleet, "gateway_spec", end)
    options = UpOptions(grpc_port=0, metrics_port=0, ray_address="10.0.0.1:6379")
    before = signal.getsignal(signal.SIGTERM)
    try:
        with (
            pytest.raises(type(error)),
            LocalFleet(CliSettings(home=tmp_path), options) as started,
        ):
            started.start()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert run == withdrawn
    assert said in caplog.text


def snapshot(state: str, *replicas: tuple[int, int]) -> fleet.FleetSnapshot:
    """Version 2 of a model is the newest; replicas by version and state."""
    return fleet.FleetSnapshot(
        models=[
            fleet.ServedModel(name="m", version=1, state="READY"),
            fleet.ServedModel(name="m", version=2, state=state, reason="its replicas failed"),
        ],
        replicas=[
            fleet.ReplicaReport(model_name="m", model_version=version, state=replica_state)
            for version, replica_state in replicas
        ],
    )


READY, LOADING = fleet.REPLICA_STATE_READY, fleet.REPLICA_STATE_LOADING


def waited(monkeypatch: pytest.MonkeyPatch, *snapshots: fleet.FleetSnapshot) -> int:
    """How many of these a fleet took to say that the model is ready."""
    left = iter(snapshots)
    running = RunningFleet(
        supervisor_pid=1,
        controller="c:1",
        grpc_address="g:1",
        metrics_address="m:1",
        controller_metrics_address="m:2",
        store_url="memory",
        num_gateway_workers=1,
    )
    monkeypatch.setattr(LocalFleet, "running", running)
    monkeypatch.setattr(local_fleet, "watch_fleet", lambda *_: left)
    monkeypatch.setattr(local_fleet, "wait_served", lambda *_: None)
    LocalFleet(CliSettings(), UpOptions()).wait_model_ready("m", 1.0)
    return len(snapshots) - len(list(left))


def test_a_model_is_ready_when_a_replica_of_its_newest_version_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loading = snapshot("LOADING", (1, READY), (2, LOADING))
    # Serve, of whose application LOADING is, tells later.
    assert waited(monkeypatch, loading, snapshot("LOADING", (2, READY)), loading) == 2


def test_a_model_whose_replicas_failed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotReadyError, match="'m': its replicas failed"):
        waited(monkeypatch, snapshot("UNAVAILABLE", (1, READY)))
