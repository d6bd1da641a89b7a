"""An emulated cluster, and the source and launcher of this controller in front of it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from services.contracts.errors import NotReadyError
from services.controller.interfaces import NodePool
from services.controller.platform.kubernetes.job_template import JobTemplate, read_template
from services.controller.platform.kubernetes.jobs import KubernetesJobs
from services.controller.platform.kubernetes.nodes import KubernetesNodes
from services.controller.platform.kubernetes.watch import WatchTiming
from tests.integration.kubernetes.emulated_cluster import NAMESPACE, EmulatedCluster
from tests.process_server import forked_children

__all__ = ["forked_children"]  # a fixture

# Long enough for any machine; nothing here waits for it to pass.
LIMIT_S = 60.0
# Nothing is held back, and a failure is tried again at once.
EAGER = WatchTiming(settle_s=0, retry_s=0.01, retry_max_s=0.05)
# The emulator loses a change that falls between its first words on a stream and the rest.
FORGIVING = replace(EAGER, resync_s=5.0)


class WatchedNodes:
    """A KubernetesNodes, and a wait for what it is to say.

    Attributes:
        said: nodes by generation, at each change.
        fault: raised by the listener, once it has heard of a change.
    """

    def __init__(self, cluster: EmulatedCluster, timing: WatchTiming) -> None:
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.said: list[dict[str, int]] = []
        self.fault: Exception | None = None
        self.source = KubernetesNodes(cluster.config, NAMESPACE, self._heard, timing)

    def _heard(self) -> None:
        with suppress(NotReadyError):
            self.said.append(counts(self.source.pools()))
        self._loop.call_soon_threadsafe(self._changed.set)
        if self.fault:
            raise self.fault

    async def until(self, is_so: Callable[[list[NodePool]], bool]) -> list[NodePool]:
        """The pools, once they are so; looked at only when they were said to have changed."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                self._changed.clear()
                with suppress(NotReadyError):
                    if is_so(pools := self.source.pools()):
                        return pools
                await self._changed.wait()

    async def first(self) -> None:
        """Until the cluster has been read."""
        async with asyncio.timeout(LIMIT_S):
            await self._changed.wait()

    async def until_counts(self, **wanted: int) -> list[NodePool]:
        """Until there are so many nodes of each generation: `sm90=1`."""
        return await self.until(lambda pools: counts(pools) == wanted)


def counts(pools: list[NodePool]) -> dict[str, int]:
    """Nodes by generation, without `cuda-`."""
    return {p.node_class.generation.removeprefix("cuda-"): p.num_nodes for p in pools}


@pytest.fixture
async def cluster() -> AsyncIterator[EmulatedCluster]:
    async with EmulatedCluster() as emulated:
        yield emulated


@pytest.fixture
async def watch_nodes() -> AsyncIterator[Callable[..., WatchedNodes]]:
    started: list[WatchedNodes] = []

    def start(cluster: EmulatedCluster, timing: WatchTiming = FORGIVING) -> WatchedNodes:
        started.append(WatchedNodes(cluster, timing))
        started[-1].source.start()
        return started[-1]

    yield start
    for nodes in started:
        await asyncio.to_thread(nodes.source.stop)


@pytest.fixture
def template(request: pytest.FixtureRequest) -> JobTemplate:
    return read_template(request.config.rootpath / "k8s/base/builder-job.yaml")


@pytest.fixture
def make_jobs(template: JobTemplate) -> Iterator[Callable[[EmulatedCluster], KubernetesJobs]]:
    with ExitStack() as opened:

        def make(cluster: EmulatedCluster) -> KubernetesJobs:
            jobs = KubernetesJobs(cluster.config, NAMESPACE, template)
            opened.callback(jobs.close)
            return jobs

        yield make
