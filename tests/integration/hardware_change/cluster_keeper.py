"""A process that owns a Ray cluster: Ray forks to start a node, which no process with gRPC may.

Commands are JSON lines on stdin, each answered by one on stdout: `{"add": labels}` starts a node
and answers its number, `{"remove": number}` kills a node's processes. The end of stdin ends all.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]
# How long a busy machine may take to start a node.
_START_S = "120"


class Cluster:
    """The keeper as its parent sees it.

    Attributes:
        address: for ray.init.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        """Wait until the first node is there."""
        self._process = process
        self.address = str(self._answer())

    def add_node(self, labels: dict[str, str]) -> int:
        """Start a node; returns its number."""
        return int(self._ask({"add": labels}))

    def remove_node(self, number: int) -> None:
        """Kill a node's processes at once."""
        self._ask({"remove": number})

    def _ask(self, command: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that keeps the cluster died; its words are on stderr"
        return json.loads(line)


@contextmanager
def ray_cluster(labels: dict[str, str], num_gpus: int = 0) -> Iterator[Cluster]:
    """A cluster whose first node has these labels, and GPUs in name; it ends with the block."""
    command = [sys.executable, "-m", "tests.integration.hardware_change.cluster_keeper"]
    with subprocess.Popen(
        [*command, json.dumps(labels), str(num_gpus)],
        cwd=_ROOT,
        env=dict(os.environ) | {"RAY_raylet_start_wait_time_s": _START_S},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Cluster(process)
        finally:
            # It ends its cluster; Popen's own exit awaits that.
            assert process.stdin is not None
            process.stdin.close()


def main() -> None:
    """Keep a cluster until stdin ends."""
    from ray.cluster_utils import Cluster as RayCluster

    # What Ray says goes to stderr; stdout is for answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    cluster = RayCluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "num_gpus": int(sys.argv[2]),
            "include_dashboard": False,
            # Any port: of one that is taken Ray forgets to close the socket it tried.
            "dashboard_port": 0,
            "labels": json.loads(sys.argv[1]),
            "_system_config": {"worker_niceness": 0},
        },
    )
    nodes: list[Any] = []
    try:
        print(json.dumps(cluster.address), file=answers, flush=True)
        for line in sys.stdin:
            match json.loads(line):
                case {"add": labels}:
                    nodes.append(cluster.add_node(num_cpus=1, wait=False, labels=labels))
                case {"remove": number}:
                    cluster.remove_node(nodes[number], allow_graceful=False)
            print(len(nodes) - 1, file=answers, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
