"""`make run` as README prints it, where nothing is installed yet, and a second start."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli.demo.run import MODEL
from services.cli.demo.sentences import QUERIES
from tests.integration.fleet.local_fleet import LocalFleet, fleet_home
from tests.unit.docs.markdown import ROOT, blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# Generous, because it only ends a test that fails: whatever else runs, engines are built here.
WAIT_S = 1500.0
OPTIONS = ("--exit-after-demo", "--grpc-port", "0", "--metrics-port", "0")
# Of the process that started the tests: another source of modules, and the options of their `make`.
NOT_OURS = ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")


@pytest.fixture(scope="module")
def home() -> Iterator[LocalFleet]:
    with fleet_home() as fleet:
        yield fleet


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This working tree without what it ignores."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for file in filter(Path.is_file, (ROOT / name for name in names.split("\0") if name)):
        target = folder / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)
    return folder


@pytest.fixture(scope="module")
def printed(home: LocalFleet, checkout: Path) -> str:
    """What the first start printed."""
    lines = [line for block in blocks(ROOT / "README.md") for line in block.text.splitlines()]
    (command,) = [line.partition("#")[0] for line in lines if line.startswith("make run")]
    done = run(command.split(), checkout, home.home, ARGS=" ".join(OPTIONS))
    if done.returncode and not (checkout / ".venv" / ".installed").exists():
        pytest.skip(f"it cannot be installed here: {(done.stdout + done.stderr)[-1000:]}")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def again(home: LocalFleet, checkout: Path, printed: str) -> dict[str, Any]:
    """The document of a second start."""
    assert printed
    done = run([".venv/bin/smelt", "up", *OPTIONS, "--json"], checkout, home.home)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def run(
    command: list[str], folder: Path, home: Path, **more: str
) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
    quick = {"SMELT_HOME": str(home), "SMELT_BENCHMARK_S": "0.02"}
    return subprocess.run(
        command,
        cwd=folder,
        env=inherited | quick | more,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_every_answer_matches_and_no_request_fails(printed: str) -> None:
    assert f"{len(QUERIES)} of {len(QUERIES)} answers match" in printed
    # At a line's start: the sum at the end, and not what it was so far.
    ((num_requests, num_failed),) = re.findall(r"(?m)^(\d+) requests?, (\d+) failed", printed)
    assert int(num_requests) > 0
    assert int(num_failed) == 0


def test_engines_are_built_and_proven_while_it_serves(printed: str) -> None:
    first_answer = printed.index("first answer, by ")
    assert first_answer < printed.index("nothing is left to be built")
    proven = re.findall(r"(?m)^[\d-]+ +(\w+) (?:fp32|bf16) +proven ", printed)
    assert set(proven) == {"onnxruntime", "openvino"}
    assert len(proven) == printed.count("proof passed (")


def test_it_ends_with_the_best_engine_or_says_why_none_is(
    printed: str, again: dict[str, Any]
) -> None:
    (case,) = again["generations"]
    (replica,) = case["replicas"]
    (served,) = re.findall(rf"(?m)^{MODEL} version 1 on .*", printed)
    best = [key for key in case["planned"] if key["rank"] == 1]
    if replica["engine_digest"]:
        assert [key["digest"] for key in best] == [replica["engine_digest"]]
        assert again["seconds"]["first_proven_answer"] is not None
        assert f"{best[0]['kind']} {best[0]['precision']} " in served
    else:
        assert "serves with the fallback" in served
        assert all("the fallback" in key["reason"] for key in case["planned"])


def test_a_second_start_builds_nothing(home: LocalFleet, again: dict[str, Any]) -> None:
    kinds = [event["kind"] for event in home.smelt("events", MODEL, "--limit", "1000")["events"]]
    assert (kinds.count("model_published"), kinds.count("recipe_changed")) == (1, 0)
    assert kinds.count("build_started") == 1
    assert {key["key_state"] for key in again["generations"][0]["planned"]} == {"proven"}
    assert again["requests"]["num_failed"] == 0
