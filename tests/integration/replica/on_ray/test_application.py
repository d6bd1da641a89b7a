"""What a replica asks for does not hang on when and where its application was built."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.replica.settings import ReplicaSettings
from tests.integration.replica.published import Shelf

pytestmark = pytest.mark.slow


async def test_gpus_go_by_the_generation_and_threads_by_the_node(
    shelf: Shelf, settings: ReplicaSettings
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    args = settings.model_dump(mode="json") | {"num_threads": 0, "controller_address": ""}
    driver = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("application_driver.py")), json.dumps(args)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    stdout, stderr = await driver.communicate()
    assert driver.returncode == 0, stderr.decode()[-4000:]
    options, threads, announced, node = json.loads(stdout.splitlines()[-1])
    # The simulated node, which has none, is not there yet.
    assert options["num_gpus"] == 0.25
    assert threads == ["1", "PASSIVE", 1]
    assert announced == node
