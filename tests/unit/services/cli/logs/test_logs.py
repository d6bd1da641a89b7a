"""`smelt logs`: files of our processes and of a session of Ray, read as one sequence."""

import json
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.logs.log_files import LogFile, LogPlaces, log_places
from services.cli.logs.log_lines import LogReader
from services.cli.main import app
from services.contracts.errors import NotFoundError
from services.controller.platform.ray.session_logs import link_logs

ROOT = Path(__file__).resolve().parents[5]
REPLICA = ":job_id:02\n:actor_name:ServeReplica:smelt:ranker:3:cpu-x86_64-v3:replica\n"


def record(second: int, message: str, **more: str) -> str:
    fields = {"time": f"2026-11-24T19:50:{second:02}.000+00:00", "level": "info"}
    return json.dumps({**fields, "message": message, **more}) + "\n"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogPlaces:
    """A home whose fleet has ended, and the session of its Ray, which is not the last one."""
    run_dir, ray_dir = tmp_path / "home" / "run", tmp_path / "ray" / "session_1" / "logs"
    last = tmp_path / "ray" / "session_latest" / "logs"
    monkeypatch.setenv("SMELT_HOME", str(run_dir.parent))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ray_dir.mkdir(parents=True)
    last.mkdir(parents=True)
    (last / "worker-0.err").write_text(REPLICA + record(9, "of another user"))
    link_logs(run_dir, ray_dir)
    return LogPlaces(run_dir=run_dir, ray_dir=ray_dir)


@pytest.fixture
def written(places: LogPlaces) -> LogPlaces:
    (places.run_dir / "gateway.log").write_text(record(1, "first") + record(4, "last"))
    bad = record(3, "lost", level="error", exception="Traceback:\n  boom", model="ranker")
    (places.run_dir / "controller.log").write_text(bad)
    worker = places.ray_dir / "worker-1.err"
    worker.write_text(f"{REPLICA}{record(2, 'warm')}of no time\n")
    (places.ray_dir / "worker-2.err").write_text(":job_id:02\n")
    (places.ray_dir / "worker-3.err").write_text(":actor_name:ServeController\nnoise\n")
    (places.ray_dir / "worker-4.err").write_text(
        ":actor_name:BuildActor\n" + record(4, "1 of 9", level="debug") + record(5, "built")
    )
    (places.ray_dir / "raylet.out").write_text("[2026-11-24 19:50:03,500 I 1 1] noise\n")
    return places


def run(*words: str) -> str:
    done = CliRunner().invoke(app, ["logs", *words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_lines_of_all_files_stand_in_the_order_of_time(written: LogPlaces) -> None:
    assert run().splitlines() == [
        "2026-11-24 19:50:01Z gateway: first",
        "2026-11-24 19:50:02Z replica:ranker:3: warm",
        "2026-11-24 19:50:02Z replica:ranker:3: of no time",
        "2026-11-24 19:50:03Z controller: error: lost model=ranker",
        "Traceback:",
        "  boom",
        "2026-11-24 19:50:04Z gateway: last",
        "2026-11-24 19:50:05Z build: built",
    ]
    assert run("--lines", "1") == "2026-11-24 19:50:05Z build: built\n"


@pytest.mark.parametrize(
    ("component", "messages"),
    [
        ("gateway", ["first", "last"]),
        ("replica", ["warm", "of no time"]),
        ("replica:ranker", ["warm", "of no time"]),
        ("build", ["1 of 9", "built"]),
        ("serve", ["noise"]),
        ("raylet", ["[2026-11-24 19:50:03,500 I 1 1] noise"]),
    ],
)
def test_one_component_is_chosen_by_its_name(
    written: LogPlaces, component: str, messages: list[str]
) -> None:
    document = json.loads(run(component, "--json"))
    assert [line["message"] for line in document["lines"]] == messages
    assert {file["component"].partition(":")[0] for file in document["files"]} == {
        component.partition(":")[0]
    }


NOISE = (
    'INFO 2026-11-24 19:50:02,179 serve 1 -- Started Serve in namespace "serve".',
    "2026-11-24 19:50:02,500\tINFO worker.py:1 -- Connecting to an address",
    "[2026-11-24 19:50:02,600 I 1 1] (raylet) joined",
    "*** SIGTERM received at time=1795769331 on cpu 1 ***",
    "PC: @     0x7f1cf5f26f36  (unknown)  epoll_wait",
    "    @     0x7f1cf5e5a050  (unknown)  (unknown)",
    "[2026-11-24 19:50:02,700 E 1 1] logging.cc:474:     @     0x7f1cf5a28b80  (unknown)",
)
TROUBLE = (
    "2026-11-24 19:50:02,800\tERROR worker.py:2 -- a worker died",
    "[2026-11-24 19:50:02,900 E 1 1] the node is out of memory",
    "WARNING 2026-11-24 19:50:02,950 serve 1 -- a replica did not start",
    "*** SIGSEGV received at time=1795769331 on cpu 1 ***",
    "PC: @     0x7f1cf5f26f37  (unknown)  of a crash",
    "    @     0x7f1cf5e5a051  (unknown)  of a crash",
)


def test_what_ray_says_of_no_trouble_is_shown_where_it_is_asked_for(written: LogPlaces) -> None:
    (written.run_dir / "ray.log").write_text("\n".join((*NOISE, *TROUBLE)) + "\n")

    def shown(*words: str) -> list[str]:
        return [line["message"] for line in json.loads(run(*words, "--json"))["lines"]]

    assert shown("ray") == list(TROUBLE)
    assert not {*NOISE} & {*shown()}
    assert {*TROUBLE} <= {*shown()}
    assert shown("ray", "--ray") == [*NOISE, *TROUBLE]
    assert {*NOISE, *TROUBLE, "noise", "[2026-11-24 19:50:03,500 I 1 1] noise"} <= {*shown("--ray")}
    assert "raylet" in run("--files", "--ray")


def test_times_of_ray_are_of_this_host(written: LogPlaces) -> None:
    (line,) = json.loads(run("raylet", "--json"))["lines"]
    local = datetime(2026, 11, 24, 19, 50, 3, 500_000)  # noqa: DTZ001
    assert datetime.fromisoformat(line["time"]) == local.astimezone()


def test_files_are_listed_with_their_component(written: LogPlaces) -> None:
    listed = dict(line.split() for line in run("--files").splitlines())
    assert listed == {
        "build": str(written.ray_dir / "worker-4.err"),
        "controller": str(written.run_dir / "controller.log"),
        "gateway": str(written.run_dir / "gateway.log"),
        "replica:ranker:3": str(written.ray_dir / "worker-1.err"),
    }


def test_another_session_takes_the_place_of_the_one_before(written: LogPlaces) -> None:
    places = log_places(written.run_dir)
    before = {file.path for file in places.files() if file.is_of("replica")}
    logs = written.ray_dir.parents[1] / "session_2" / "logs"
    logs.mkdir(parents=True)
    (logs / "worker-1.err").write_text(REPLICA)
    link_logs(written.run_dir, logs)
    assert before == {written.ray_dir / "worker-1.err"}
    assert [file.path for file in places.files() if file.is_of("replica")] == [
        logs / "worker-1.err"
    ]


def test_what_a_worker_runs_is_read_once(written: LogPlaces) -> None:
    known = written.files()
    (written.ray_dir / "worker-1.err").write_text("of another form\n")
    assert written.files() == known


def test_where_nothing_is_it_says_where_it_would_be(places: LogPlaces) -> None:
    with pytest.raises(NotFoundError) as refused:
        run()
    assert str(places.run_dir) in str(refused.value)
    assert str(places.ray_dir) in str(refused.value)
    assert "smelt up" in str(refused.value)


def test_an_unknown_component_comes_with_those_that_are_there(written: LogPlaces) -> None:
    with pytest.raises(NotFoundError, match="'gatway', did you mean 'gateway'.; there are build,"):
        run("gatway")


def test_a_reader_gives_whole_lines_once_and_begins_anew_in_another_file(tmp_path: Path) -> None:
    path, reader = tmp_path / "up.log", LogReader()
    file = LogFile(component="up", path=path)

    def new() -> list[str]:
        return [line.text for line in reader.read([file])]

    assert new() == []
    path.write_text("one\ntw")
    assert new() == ["one"]
    with path.open("a") as appended:
        appended.write("o\nthree\n")
    assert new() == ["two", "three"]
    assert new() == []
    path.write_text("new\n")
    assert new() == ["new"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_comes_is_shown_until_a_signal(written: LogPlaces, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "services.cli.main", "logs", "replica", "--follow", "--json"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for message in ("warm", "of no time"):
            assert json.loads(process.stdout.readline())["message"] == message
        # A replica that comes has a file of its own.
        (written.ray_dir / "worker-9.err").write_text(REPLICA + record(7, "another"))
        assert json.loads(process.stdout.readline())["message"] == "another"
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest, errors) == (0, "", "")
