"""Workers that are forked: what the raylet runs, what forks, and a script in Ray's place."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.replica.ray_worker import __main__ as asking

# Stands for Ray's `default_worker.py`.
_WORKER = """
import json, os, signal, sys
facts = {
    "arguments": sys.argv[1:],
    "asked_by": os.environ.get("ASKED_BY"),
    "folder": os.getcwd(),
    "parent": os.getppid(),
    "group": os.getpgid(0),
    "name": __name__,
    "waits": signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL,
    "imported": [each for each in ("fastapi", "ray") if each in sys.modules],
    "random": __import__("random").random(),
    "added": os.environ.get("ADDED"),
}
print(json.dumps(facts), flush=True)
"""
_LANGUAGE = "--language=PYTHON"


class Server:
    """The server as a process; `name` is its abstract address."""

    def __init__(self) -> None:
        self.name = f"smelt-test-{secrets.token_hex(8)}"
        module = "services.replica.ray_worker.fork_server"
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, self.name, str(os.getpid())],
            stderr=subprocess.PIPE,
            text=True,
        )

    def connected(self) -> socket.socket:
        """A connection, once it listens."""
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(f"\0{self.name}")
                return connection
            except ConnectionRefusedError:
                connection.close()
                assert self.process.poll() is None, self.process.communicate()

    def log(self) -> str:
        """End it; all that it wrote."""
        self.process.kill()
        return self.process.communicate()[1]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server()
    # Refused and closed: from then on it listens, and has imported what it does.
    with started.connected() as connection:
        connection.sendall(b"\n{}\n")
        assert connection.recv(1) == b""
    yield started
    started.log()


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(_WORKER)
    return path


def ask(name: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """What the raylet runs, in a process group of its own as there."""
    return subprocess.run(
        [sys.executable, asking.__file__, *map(str, arguments)],
        env=os.environ | {"SMELT_FORK_SERVER": name, "ASKED_BY": "raylet"},
        capture_output=True,
        text=True,
        check=True,
        process_group=0,
        timeout=60,
    )


def facts(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_fork_is_what_the_raylet_asked_for(server: Server, worker: Path) -> None:
    found = facts(ask(server.name, worker, "--node-id=7", _LANGUAGE))
    assert found["arguments"] == ["--node-id=7"]
    assert found["asked_by"] == "raylet"
    assert found["folder"] == str(Path.cwd())
    assert found["parent"] == server.process.pid
    assert found["name"] == "__main__"
    assert found["waits"]


def test_it_has_imported_all_but_ray(server: Server, worker: Path) -> None:
    context = "--serialized-runtime-env-context={}"
    assert facts(ask(server.name, worker, context, _LANGUAGE))["imported"] == ["fastapi"]


def test_forks_draw_different_numbers(server: Server, worker: Path) -> None:
    one, other = (facts(ask(server.name, worker))["random"] for _ in range(2))
    assert one != other


def test_it_is_in_the_group_that_the_raylet_ends(server: Server, tmp_path: Path) -> None:
    waiting = tmp_path / "waiting.py"
    waiting.write_text("import os, signal\nprint(os.getpgid(0), flush=True)\nsignal.pause()\n")
    done = subprocess.Popen(
        [sys.executable, asking.__file__, str(waiting)],
        env=os.environ | {"SMELT_FORK_SERVER": server.name},
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert done.stdout is not None
    with done.stdout as lines:
        assert int(lines.readline()) == done.pid
        assert done.wait() == 0
        os.killpg(done.pid, signal.SIGKILL)
        assert lines.read() == "", "the fork outlives its group"


def test_a_worker_with_an_environment_of_its_own_is_started_by_ray(
    server: Server, worker: Path
) -> None:
    context = '--serialized-runtime-env-context={"env_vars": {"ADDED": "1"}}'
    found = facts(ask(server.name, worker, context, _LANGUAGE))
    assert found["parent"] != server.process.pid
    assert found["added"] == "1"
    assert found["imported"] == []


def test_without_a_server_ray_starts_it(worker: Path) -> None:
    done = ask("smelt-test-none", worker, "--node-id=7", _LANGUAGE)
    assert facts(done)["arguments"] == ["--node-id=7"]
    assert "the fork server does not fork" in done.stderr


def test_a_server_that_is_killed_while_it_is_asked_does_not_stop_the_worker(worker: Path) -> None:
    dying = Server()
    dying.connected().close()
    os.kill(dying.process.pid, signal.SIGSTOP)
    asked = subprocess.Popen(
        [sys.executable, asking.__file__, str(worker), _LANGUAGE],
        env=os.environ | {"SMELT_FORK_SERVER": dying.name},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    dying.log()
    output, errors = asked.communicate(timeout=60)
    assert json.loads(output)["imported"] == []
    assert "the fork server does not fork" in errors


def test_who_gave_up_waiting_has_no_second_worker(server: Server, tmp_path: Path) -> None:
    """Both would be one worker to the raylet, which ends the group of either."""
    started = tmp_path / "started"
    script = tmp_path / "worker.py"
    script.write_text(f"open({str(started)!r}, 'a').write('once ')")
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError):
            asking.start_fork(server.name, [str(script)], timeout_s=0.2)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    # One after the other: this one is answered once the other has been.
    ask(server.name, script)
    _wait_for(started)
    psutil.wait_procs(psutil.Process(server.process.pid).children(), timeout=30)
    assert started.read_text() == "once "


def _wait_for(path: Path) -> None:
    until_s = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until_s
        time.sleep(0.01)  # a file has no event that the standard library knows


def test_it_has_what_the_raylet_gave_to_who_asked(server: Server, tmp_path: Path) -> None:
    script = tmp_path / "limits.py"
    script.write_text(
        "import json, resource, signal\n"
        "blocked = [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())]\n"
        "score = open('/proc/self/oom_score_adj').read().strip()\n"
        "files = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "print(json.dumps([blocked, score, files[0]]))"
    )
    source = (
        "import os, resource, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "open('/proc/self/oom_score_adj', 'w').write('321')\n"
        "_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (333, most))\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", source, asking.__file__, str(script)],
        env=os.environ | {"SMELT_FORK_SERVER": server.name},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [[int(signal.SIGINT)], "321", 333]


def test_flags_of_python_are_for_a_process_s_start(server: Server, worker: Path) -> None:
    found = facts(ask(server.name, "-s", worker, "--node-id=7", _LANGUAGE))
    assert found["arguments"] == ["--node-id=7"]
    assert found["parent"] != server.process.pid


def test_a_variable_that_is_no_text_comes_along(server: Server, tmp_path: Path) -> None:
    script = tmp_path / "variable.py"
    script.write_text("import os\nprint(os.environb[b'ODD'])")
    done = subprocess.run(
        [sys.executable, asking.__file__, str(script)],
        env={
            **{os.fsencode(k): os.fsencode(v) for k, v in os.environ.items()},
            b"SMELT_FORK_SERVER": server.name.encode(),
            b"ODD": b"\xff\x01",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("b'\\xff\\x01'\n", "")


def test_another_session_is_refused(server: Server, worker: Path) -> None:
    done = subprocess.run(
        [sys.executable, asking.__file__, str(worker), _LANGUAGE],
        env=os.environ | {"SMELT_FORK_SERVER": server.name},
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    assert json.loads(done.stdout)["parent"] != server.process.pid
    assert "the fork server does not fork" in done.stderr


@pytest.mark.parametrize(
    "sent",
    [b"", b"\n", b"\nnone\n", b'\n{"arguments": []}\n', b"\n" + b"[" * 100_000 + b"\n"],
    ids=["nothing", "an empty line", "no JSON", "a part", "deep JSON"],
)
def test_what_is_no_request_ends_nothing(server: Server, worker: Path, sent: bytes) -> None:
    with server.connected() as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert facts(ask(server.name, worker))["parent"] == server.process.pid


def test_a_request_without_streams_is_refused(server: Server) -> None:
    request = {"arguments": ["/bin/true"], "environment": {}, "folder": "/"}
    with server.connected() as connection:
        connection.sendall(b"\n" + json.dumps(request).encode() + b"\n")
        assert connection.recv(1) == b""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_is_refused(server: Server) -> None:
    source = (
        "import os, socket\nos.setuid(65534)\nconnection = socket.socket(socket.AF_UNIX)\n"
        f"connection.connect('\\0{server.name}')\nprint(connection.recv(1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout == "b''\n"


def test_imports_that_start_threads_are_refused(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    source = (
        "from services.replica.ray_worker.fork_server import import_once\n"
        "try:\n    import_once(['threaded'])\nexcept RuntimeError as error:\n    print(error)\n"
    )
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("imports started threads, which no fork would have")


def test_what_was_set_for_numpys_library_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "import os\nfrom services.replica.ray_worker.fork_server import import_once\n"
        "import_once([])\nprint(os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    command = [sys.executable, "-c", source]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"
