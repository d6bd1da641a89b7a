"""Serve starts replicas as their load says, until the GPU is busy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SOON = {
    "PYTHONPATH": str(Path(__file__).parents[4]),
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
}


def test_replicas_are_added_until_the_gpu_is_busy_and_give_way_to_another_model() -> None:
    driver = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("scaling_driver.py"))],
        capture_output=True,
        text=True,
        env=os.environ | SOON,
        timeout=300,
        check=False,
    )
    assert driver.returncode == 0, driver.stderr[-4000:]
    assert json.loads(driver.stdout.splitlines()[-1]) == [1, 2, 3, 1]
