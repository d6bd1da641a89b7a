"""A build task that Ray ends for want of memory has ended: it does not hold up others for ever."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.builds.conftest import ROOT

pytestmark = pytest.mark.slow

# A Ray of its own, which finds every worker too large from the start.
SCRIPT = """
import sys
import time
import ray
from services.contracts.hardware.node_class import NodeClass
from services.controller.platform.ray.ray_tasks import RayBuildLauncher
from services.controller.interfaces import BuildTask, TaskState
config = {"memory_usage_threshold": 0.0, "memory_monitor_refresh_ms": 50}
# Never the cluster that another test has on this host.
ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, _system_config=config)
launcher = RayBuildLauncher(store_url=sys.argv[1], cache_dir=sys.argv[2])
node_class = NodeClass(generation="cpu-x86_64-v3", device="any", memory_gib=1)
task = BuildTask(name="large", model="tiny", version=1, node_class=node_class, is_anywhere=True)
launcher.launch(task)
while (status := launcher.statuses()["large"]).state is not TaskState.ENDED:
    time.sleep(0.1)  # Ray's own processes want the core
print(status.is_failed, status.detail)
ray.shutdown()
"""


def test_it_has_failed_with_the_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "store"), str(tmp_path / "cache")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "True Ray ended it, as its node was out of memory"
