"""External models that are Ray Serve applications, which the fleet itself deploys."""

from pathlib import Path

import openai
import psutil
import pytest

from tests.integration.fleet.local_fleet import WAIT_S, LocalFleet

SOURCE = "ray+openai://tests.integration.fleet.chat_app:build"


def add(fleet: LocalFleet, folder: Path, words: str) -> None:
    """The next version of `chat`, which says these words."""
    (folder / "args.yaml").write_text(f"name: tiny\nwords: {words}\n")
    args = ("--remote-name", "tiny", "--app-args", str(folder / "args.yaml"))
    fleet.smelt("models", "add", "chat", SOURCE, *args)


def wait_state(fleet: LocalFleet, model: str, version: int, state: str) -> str:
    """Wait until a version is so; its reason."""
    last = fleet.wait_until(
        lambda seen: any((m.name, m.version, m.state) == (model, version, state) for m in seen.models)
    )
    return next(m.reason for m in last.models if (m.name, m.version) == (model, version))


def answers(fleet: LocalFleet, num: int) -> set[str]:
    """What the gateway's clients get from `chat`, in streams."""
    url = f"http://{fleet.running['http_address']}/v1"
    said = set()
    with openai.OpenAI(base_url=url, api_key="of the client", max_retries=0) as client:
        for _ in range(num):
            question = [{"role": "user", "content": "hi"}]
            stream = client.chat.completions.create(model="chat", messages=question, stream=True)  # type: ignore[call-overload]
            parts = [part.choices[0].delta.content for part in stream]
            said.add(" ".join(parts))
    return said


def actors(fleet: LocalFleet, title: str) -> list[psutil.Process]:
    """Processes of the fleet's Ray that have such a title."""
    return [process for process in fleet.processes() if title in " ".join(process.cmdline())]


def wait_ended(processes: list[psutil.Process]) -> None:
    """Wait until these, of which there is one, have ended."""
    assert len(processes) == 1
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []


def test_applications_are_deployed_shared_and_removed(fleet: LocalFleet, tmp_path: Path) -> None:
    fleet.smelt("models", "add", "wrong", "ray+openai://no.such.module:app")
    add(fleet, tmp_path, "one two three")
    wait_state(fleet, "chat", 1, "READY")
    assert answers(fleet, 1) == {"one two three"}
    add(fleet, tmp_path, "four five")
    wait_state(fleet, "chat", 2, "READY")
    fleet.smelt("models", "weights", "chat", "1=50", "2=50")
    assert answers(fleet, 40) == {"one two three", "four five"}
    why = "not deployed: No module named 'no'"
    assert wait_state(fleet, "wrong", 1, "UNAVAILABLE") == why
    assert fleet.smelt("why", "wrong")["external"]["reason"] == why
    first = actors(fleet, "ServeReplica:smelt-external:chat:1")
    fleet.smelt("models", "remove", "chat", "--version", "1")
    wait_ended(first)
    assert answers(fleet, 1) == {"four five"}
    proxy = actors(fleet, "ray::ProxyActor")
    fleet.smelt("models", "remove", "chat")
    fleet.smelt("models", "remove", "wrong")
    wait_ended(proxy)
