"""External models that are Ray Serve applications, which the fleet itself deploys."""

from pathlib import Path

import openai
import psutil
import pytest

from services.contracts.external.external_model import ExternalModel
from services.pb import fleet_v1_pb2 as fleet_pb
from tests.integration.fleet.local_fleet import WAIT_S, LocalFleet

SOURCE = "ray+openai://tests.integration.fleet.chat_app:build"


def add(fleet: LocalFleet, folder: Path, words: str) -> int:
    """The number of the next version of `chat`, which says these words."""
    (folder / "args.yaml").write_text(f"name: tiny\nwords: {words}\n")
    args = ("--remote-name", "tiny", "--args", str(folder / "args.yaml"))
    return int(fleet.smelt("models", "add", "chat", SOURCE, *args)["version"])


def wait_state(fleet: LocalFleet, model: str, version: int, state: str) -> str:
    """Wait until a version is so; its reason."""
    last = fleet.wait_until(
        lambda seen: any(
            (m.name, m.version, m.state) == (model, version, state) for m in seen.models
        )
    )
    return next(m.reason for m in last.models if (m.name, m.version) == (model, version))


def address_in(snapshot: fleet_pb.FleetSnapshot) -> str:
    """Where the newest version of `chat` is asked; "" while it is not ready."""
    model = max((m for m in snapshot.models if m.name == "chat"), key=lambda m: m.version)
    is_ready = model.state == "READY"
    return ExternalModel.from_json(model.external_json).url if is_ready else ""


def answers(fleet: LocalFleet, num: int) -> set[str]:
    """What clients of the gateway get from `chat`, in streams."""
    url = f"http://{fleet.running['http_address']}/v1"
    with openai.OpenAI(base_url=url, api_key="of the client", max_retries=0) as client:
        return {streamed(client) for _ in range(num)}


def streamed(client: openai.OpenAI) -> str:
    """The parts of one answer, one after another."""
    with client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "hi"}], stream=True
    ) as parts:
        return " ".join(part.choices[0].delta.content or "" for part in parts)


def actors(fleet: LocalFleet, title: str) -> list[psutil.Process]:
    """Processes of the fleet's Ray that have such a title."""
    return [process for process in fleet.processes() if title in " ".join(process.cmdline())]


def wait_ended(processes: list[psutil.Process]) -> None:
    """Wait until these, of which there are some, have ended."""
    assert processes
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []


def test_one_is_deployed_asked_and_ended(fleet: LocalFleet, tmp_path: Path) -> None:
    number = add(fleet, tmp_path, "one two three")
    wait_state(fleet, "chat", number, "READY")
    assert answers(fleet, 1) == {"one two three"}
    ours = [*actors(fleet, "ServeReplica:smelt-external:chat:"), *actors(fleet, "ray::ProxyActor")]
    assert len(ours) == 2
    fleet.smelt("models", "remove", "chat")
    wait_ended(ours)


@pytest.mark.slow
def test_versions_share_requests_and_a_wrong_one_is_explained(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    fleet.smelt("models", "add", "wrong", "ray+openai://no.such.module:app")
    old, new = (add(fleet, tmp_path, words) for words in ("one two", "three four"))
    for number in (old, new):
        wait_state(fleet, "chat", number, "READY")
    fleet.smelt("models", "weights", "chat", f"{old}=50", f"{new}=50")
    assert answers(fleet, 40) == {"one two", "three four"}
    why = "not deployed: ModuleNotFoundError: No module named 'no'"
    assert wait_state(fleet, "wrong", 1, "UNAVAILABLE") == why
    assert fleet.smelt("why", "wrong")["external"]["reason"] == why
    first = actors(fleet, f"ServeReplica:smelt-external:chat:{old}:")
    fleet.smelt("models", "remove", "chat", "--version", str(old))
    wait_ended(first)
    assert answers(fleet, 1) == {"three four"}
    fleet.smelt("models", "unload", "chat")
    wait_ended(actors(fleet, "ServeReplica:smelt-external:chat:"))
    fleet.smelt("models", "load", "chat")
    wait_state(fleet, "chat", new, "READY")
    assert answers(fleet, 1) == {"three four"}
    before = address_in(fleet.wait_until(lambda seen: bool(address_in(seen))))
    for proxy in actors(fleet, "ray::ProxyActor"):
        proxy.kill()
    # Another one takes its place, on a port of its own.
    fleet.wait_until(lambda seen: address_in(seen) not in ("", before))
    assert answers(fleet, 1) == {"three four"}
    # It may end as soon as the first of them is removed.
    proxies = actors(fleet, "ray::ProxyActor")
    fleet.smelt("models", "remove", "chat")
    fleet.smelt("models", "remove", "wrong")
    wait_ended(proxies)
