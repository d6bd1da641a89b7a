"""Idle workers of a real Ray: imported ahead, and one more for each that was taken."""

import json
import os
import subprocess
import sys

import pytest

from services.replica.ray_worker.environment import node_environment
from services.replica.ray_worker.spare import has_gpu


@pytest.mark.slow
def test_each_replica_takes_a_worker_that_has_imported_ahead() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.replica.on_ray.spare_worker_driver"],
        env={**os.environ, **node_environment(), "RAY_raylet_start_wait_time_s": "120"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    taken = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert taken == [{"was_idle": True, "has_imported": True}] * 2


@pytest.mark.skipif(has_gpu(), reason="imports ahead on hosts with a GPU")
def test_hosts_without_a_gpu_import_nothing_ahead() -> None:
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "import services.replica.ray_worker.imports, sys; print(*sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not {"torch", "services.replica.deployment"}.intersection(found)
