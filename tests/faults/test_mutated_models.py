"""200 damaged models: each is refused with a reason or opened, and no process dies of one."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.contracts.builds.build_record import BuildOutcome
from tests.faults.mutated_models import fate_of
from tests.process_server import forked_children
from tests.quick_worker import quick_worker

__all__ = ["forked_children"]  # a fixture

pytestmark = pytest.mark.usefixtures("forked_children")

NUM_MODELS = 200
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fates() -> list[dict[str, Any]]:
    """What became of each model, told by one process that met them all."""
    command = [sys.executable, "-m", "tests.faults.mutated_models", "--count", str(NUM_MODELS)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_one_process_lives_through_all_of_them(fates: list[dict[str, Any]]) -> None:
    assert [fate["seed"] for fate in fates] == list(range(NUM_MODELS))
    verdicts = Counter(fate["verdict"] for fate in fates)
    assert set(verdicts) == {"refused", "opened"}
    # Else the damage is too coarse, or nothing is looked at.
    assert min(verdicts.values()) >= NUM_MODELS // 10
    assert len({fate["damaged"] for fate in fates if fate["verdict"] == "refused"}) >= 7


def test_each_refusal_says_what_was_found(fates: list[dict[str, Any]]) -> None:
    reasons = [fate["reason"] for fate in fates if fate["verdict"] == "refused"]
    for reason in reasons:
        error, _, words = reason.partition(": ")
        assert error in ("InvalidModelError", "UnsupportedGraphError")
        assert len(words.split()) >= 5, reason
    assert len(set(reasons)) > len(reasons) // 4


@pytest.mark.parametrize(
    ("seed", "verdict"),
    [
        (11, "proven"),  # another opset, with the same meaning
        (22, "failed"),  # a dimension that the graph does not allow to differ
        (96, "failed"),  # NaN among the weights: NaN everywhere, in the reference too
        (58, "failed"),  # an operand of another shape: known only when the engine runs
    ],
)
def test_what_was_opened_is_proven_or_its_record_says_why_not(
    seed: int, verdict: str, tmp_path: Path
) -> None:
    worker = quick_worker(tmp_path)
    fate = fate_of(seed, tmp_path, worker)
    assert fate.verdict == verdict, fate.reason
    engines = list(worker.registry.engines())
    keys = {engine.digest for engine in engines}
    assert bool(keys) is (verdict == "proven")
    assert bool(fate.reason) is (verdict == "failed")
    for key in keys:
        (record,) = worker.registry.build_records(key)
        assert record.outcome is BuildOutcome.PROVEN
