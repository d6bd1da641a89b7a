"""The demo as `make run` starts it, twice: what it shows, and what it leaves for the next start."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli.demo.run import MODEL
from services.cli.demo.sentences import QUERIES
from tests.integration.fleet.local_fleet import SMELT, LocalFleet, fleet_home

pytestmark = pytest.mark.slow

# Generous, because it only ends a test that fails: whatever else runs, engines are built here.
WAIT_S = 900.0


@pytest.fixture(scope="module")
def home() -> Iterator[LocalFleet]:
    with fleet_home() as fleet:
        yield fleet


@pytest.fixture(scope="module")
def first(home: LocalFleet) -> dict[str, Any]:
    """What the first start printed."""
    return started(home.home)


def started(home: Path) -> dict[str, Any]:
    options = ("--exit-after-demo", "--json", "--grpc-port", "0", "--metrics-port", "0")
    quick = {"SMELT_HOME": str(home), "SMELT_BENCHMARK_S": "0.02"}
    done = subprocess.run(
        [SMELT, "up", *options],
        env=dict(os.environ) | quick,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_every_answer_matches_and_no_request_fails(first: dict[str, Any]) -> None:
    assert [answer for answer in first["answers"] if not answer["is_matched"]] == []
    assert len(first["answers"]) == len(QUERIES)
    assert first["requests"]["num_failed"] == 0
    assert first["requests"]["num_requests"] > 0


def test_engines_are_built_and_proven_while_it_serves(first: dict[str, Any]) -> None:
    (case,) = first["generations"]
    assert {key["standing"] for key in case["planned"]} == {"proven"}
    assert {"onnxruntime", "openvino"} == {key["kind"] for key in case["planned"]}
    seconds = first["seconds"]
    assert seconds["first_answer"] < seconds["end"]


def test_it_ends_with_the_best_engine_or_says_why_none_is(first: dict[str, Any]) -> None:
    (case,) = first["generations"]
    (replica,) = case["replicas"]
    best = [key for key in case["planned"] if key["rank"] == 1]
    if replica["engine_digest"]:
        assert [key["digest"] for key in best] == [replica["engine_digest"]]
        assert first["seconds"]["first_proven_answer"] is not None
    else:
        assert all("x the fallback" in key["reason"] for key in case["planned"])


def test_a_second_start_builds_nothing(home: LocalFleet, first: dict[str, Any]) -> None:
    again = started(home.home)
    digests, before = (
        sorted(key["digest"] for key in each["generations"][0]["planned"])
        for each in (again, first)
    )
    assert digests == before
    kinds = [event["kind"] for event in home.smelt("events", MODEL, "--limit", "1000")["events"]]
    assert (kinds.count("model_published"), kinds.count("recipe_changed")) == (1, 0)
    assert kinds.count("build_started") == 1
    assert again["requests"]["num_failed"] == 0
