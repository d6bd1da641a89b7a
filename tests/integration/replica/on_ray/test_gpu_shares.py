"""Several models on one GPU of a real Ray, which has it in name alone."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# The driver finds helpers of tests, and Serve never says of a replica that it waits.
DRIVERS_OWN = {
    "PYTHONPATH": str(Path(__file__).parents[4]),
    "RAY_SERVE_SLOW_STARTUP_WARNING_S": "3600",
}


async def test_two_models_share_a_gpu_and_a_new_version_takes_the_place_of_the_old(
    tmp_path: Path,
) -> None:
    driver = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("shares_driver.py")), str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | DRIVERS_OWN,
    )
    stdout, stderr = await driver.communicate()
    assert driver.returncode == 0, stderr.decode()[-4000:]
    found = json.loads(stdout.splitlines()[-1])
    # By an estimate, and by a proof that needs more; the second model's is of its recipe.
    assert found["shares"] == [{"a": 0.194}, {"a": 0.2828, "b": 0.6}]
    refused = found["refused"]
    assert refused.startswith(
        "needs 20.0 GiB (0.2 of a GPU of 100 GiB) on cuda-sm90; free: 11.7 GiB"
    )
    assert "held by a version 1: 28.3 GiB, b version 1: 60.0 GiB." in refused
    # The second controller started nothing again.
    assert found["submitted"] == ["a 1", "a 1", "b 1", "c 1", "b 2"]
