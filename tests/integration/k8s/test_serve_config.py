"""The Serve config inside the RayService is what a real Ray and our application take."""

import asyncio
import json
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.pb import fleet_v1_pb2 as fleet
from tests.integration.k8s.ray_rules import GENERATION, serve_config
from tests.integration.k8s.rendering import K8S, OVERLAYS, ROOT, render
from tests.integration.replica.controller import TestController
from tests.integration.replica.published import Shelf

HERE = Path(__file__).parent
LOCAL_GENERATION = "cpu-x86_64-v3"


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


@pytest.fixture
async def controller() -> AsyncIterator[TestController]:
    async with TestController() as controller:
        yield controller


def test_ray_and_our_application_take_every_config() -> None:
    configs = [serve_config(render(K8S / "overlays" / overlay)) for overlay in OVERLAYS]
    done = subprocess.run(
        [sys.executable, HERE / "schema_driver.py"],
        input="".join(json.dumps(config) + "\n" for config in configs),
        capture_output=True,
        text=True,
        cwd=ROOT,
        # The rest of a replica's settings is in its pod's environment.
        env=environment(SMELT_REPLICA_STORE_URL="s3://smelt", SMELT_REPLICA_CACHE_DIR="/tmp/x"),
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for config, line in zip(configs, done.stdout.splitlines(), strict=True):
        said = json.loads(line)
        assert said["labels"] == [[GENERATION]] * len(config["applications"])
        named = [app["deployments"][0]["name"] for app in config["applications"]]
        assert said["deployments"] == named
        assert "modle" in said["refused"]


@pytest.mark.slow
async def test_a_config_of_the_manifests_serves(
    shelf: Shelf, controller: TestController, tmp_path: Path
) -> None:
    """Applied as KubeRay does it, on a node with the label of the local worker group."""
    shelf.publish_model()
    shelf.publish_engine()
    config = serve_config(render(K8S / "overlays" / "local"))
    (application,) = config["applications"]
    application["args"]["model"] = "toy"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        HERE / "serve_driver.py",
        json.dumps({GENERATION: LOCAL_GENERATION}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        limit=2**22,
        env=environment(
            SMELT_REPLICA_STORE_URL=str(tmp_path / "store"),
            SMELT_REPLICA_CACHE_DIR=str(tmp_path / "cache"),
            SMELT_REPLICA_CONTROLLER_ADDRESS=controller.address,
            SMELT_REPLICA_NUM_THREADS="1",
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN=secrets.token_hex(32),
        ),
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps(config).encode() + b"\n")
    said = json.loads(await process.stdout.readline() or "{}")
    assert said, "the driver ended without a word; its standard error says why"
    running = said["applications"][application["name"]]
    assert running["route_prefix"] is None
    options = running["deployments"]["replica"]["deployment_config"]["ray_actor_options"]
    assert options["label_selector"] == {GENERATION: LOCAL_GENERATION}
    assert said["proxies"] == {}
    report = await controller.report_where(lambda r: r.state == fleet.REPLICA_STATE_READY)
    assert (report.model_name, report.model_version) == ("toy", 1)
    process.stdin.close()
    assert await process.wait() == 0
    await controller.detached()


def environment(**given: str) -> dict[str, str]:
    """A replica's settings on top of what any process here needs."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", **given}
