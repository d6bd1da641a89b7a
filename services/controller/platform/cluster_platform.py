"""The platform of a controller: Ray, on which it places replicas itself, or Kubernetes.

With a RayService, versions and placement stand in its serveConfigV2: the controller then
places nothing, reads nodes from Kubernetes, and builds in Jobs.
"""

import logging
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from services.contracts.errors import (
    InvalidRequestError,
    NotReadyError,
    UnsupportedFeatureError,
)
from services.controller.api.fleet_state import FleetState
from services.controller.interfaces import (
    BuildLauncher,
    NodePool,
    NodeSource,
    ReplicaFleet,
    ServeApplications,
)
from services.controller.platform.fleet_file import FleetFile
from services.controller.platform.ray.ray_nodes import RayNodes
from services.controller.platform.ray.ray_tasks import RayBuildLauncher
from services.controller.platform.ray.replica_fleet import RayServeFleet
from services.controller.platform.ray.serve_apps import RayServeApps
from services.controller.platform.ray.session_logs import link_logs, session_logs
from services.controller.settings import ControllerSettings

logger = logging.getLogger(__name__)

_FIGURES = re.compile(r"[0-9]+")


@dataclass(frozen=True, kw_only=True)
class ClusterPlatform:
    """Where replicas are placed, nodes are seen and builds run.

    Attributes:
        apps: runs servers of external models, and ends them; None where none can be.
        close: ends threads and connections; each may block.
    """

    replicas: ReplicaFleet
    nodes: NodeSource
    launcher: BuildLauncher
    apps: ServeApplications | None = None
    close: tuple[Callable[[], None], ...] = ()


def open_platform(
    settings: ControllerSettings, state: FleetState, on_nodes_changed: Callable[[], None]
) -> ClusterPlatform:
    """What the settings ask for; blocks.

    Args:
        settings: of the controller.
        state: has the replicas that attached.
        on_nodes_changed: called in some thread.

    Raises:
        InvalidRequestError: settings that do not go together, or no cluster.
        UnsupportedFeatureError: lightkube is not installed.
    """
    if settings.placement == "rayservice":
        return _in_kubernetes(settings, state, on_nodes_changed)
    replicas = RayServeFleet(settings.ray_address, settings.replica_app, settings.store_url)
    replicas.start()
    link_logs(settings.run_dir, session_logs())
    launcher = RayBuildLauncher(
        store_url=settings.store_url,
        cache_dir=str(settings.cache_dir.absolute()),
        num_threads=settings.replica_num_threads,
        extra_arguments=tuple(settings.build_arguments.split()),
    )
    nodes = CombinedNodes([RayNodes()], _described(settings))
    apps = RayServeApps(settings.replica_host)
    return ClusterPlatform(replicas=replicas, nodes=nodes, launcher=launcher, apps=apps)


def _in_kubernetes(
    settings: ControllerSettings, state: FleetState, on_nodes_changed: Callable[[], None]
) -> ClusterPlatform:
    if settings.job_template is None:
        raise InvalidRequestError(
            "SMELT_CONTROLLER_JOB_TEMPLATE is not set: builds run in Kubernetes Jobs here; give "
            "the file of a batch/v1 Job, as k8s/base has one"
        )
    try:
        import lightkube  # noqa: F401 # whether it is there is the question
    except ImportError as error:
        raise UnsupportedFeatureError(
            "Kubernetes is switched on and its client is not installed: "
            "pip install 'smelt[kubernetes]'"
        ) from error
    from services.controller.platform.kubernetes.client import find_cluster
    from services.controller.platform.kubernetes.job_template import read_template
    from services.controller.platform.kubernetes.jobs import KubernetesJobs
    from services.controller.platform.kubernetes.nodes import KubernetesNodes
    from services.controller.platform.kubernetes.placed_by_ray_service import PlacedByRayService
    from services.controller.platform.kubernetes.servers import KubernetesServers

    cluster = find_cluster()
    namespace = settings.kubernetes_namespace or cluster.namespace
    template = read_template(settings.job_template)
    jobs = KubernetesJobs(cluster, namespace, template, image=settings.compiler_image)
    nodes = KubernetesNodes(cluster, namespace, on_nodes_changed)
    nodes.start()
    # Without the setting the rights to list and delete are not granted either.
    servers = KubernetesServers(cluster, namespace) if settings.serve_apps else None
    return ClusterPlatform(
        replicas=PlacedByRayService(state, nodes.num_replicas_wanted),
        nodes=CombinedNodes([nodes], _described(settings)),
        launcher=jobs,
        apps=servers,
        close=(nodes.stop, jobs.close, *([servers.close] if servers else [])),
    )


def _described(settings: ControllerSettings) -> list[NodeSource]:
    return [FleetFile(settings.fleet_file)] if settings.fleet_file else []


class CombinedNodes:
    """A NodeSource over others, for any number of threads."""

    def __init__(self, sources: Sequence[NodeSource], described: Sequence[NodeSource] = ()) -> None:
        """Nothing is asked yet.

        Args:
            sources: of nodes that are there; without all of them nothing is known.
            described: of nodes that may come. A wrong description is logged, and left out until
                it is right: it must not keep from serving what is there.
        """
        self._sources = (*sources, *described)
        self._num_needed = len(sources)
        self._last: list[list[NodePool] | None] = [None for _ in self._sources]
        self._faults = ["" for _ in self._sources]
        self._lock = threading.Lock()

    def pools(self) -> list[NodePool]:
        """All pools of all sources, in their order.

        Raises:
            NotReadyError: one has never answered yet: what there is, is not known.
        """
        # Without the lock: a source that hangs would keep every later call waiting for it.
        answers = [_answer(source) for source in self._sources]
        with self._lock:
            for index, answer in enumerate(answers):
                if not isinstance(answer, NotReadyError):
                    self._last[index] = answer
                    self._faults[index] = ""
                    continue
                if self._last[index] is None and index < self._num_needed:
                    raise answer
                self._log_once(index, str(answer))
                self._last[index] = [
                    replace(pool, is_stale=True) for pool in self._last[index] or ()
                ]
            return [pool for known in self._last for pool in known or ()]

    def _log_once(self, index: int, fault: str) -> None:
        """Log a fault once for as long as it stays the same: syncs come every few seconds."""
        # Seconds and attempts in it grow, and make no other fault of it.
        same = _FIGURES.sub("", fault)
        if self._faults[index] != same:
            what = "ignoring its" if self._last[index] is None else "using the last known"
            logger.error("%s; %s nodes until the source recovers", fault, what)
            self._faults[index] = same


def _answer(source: NodeSource) -> list[NodePool] | NotReadyError:
    try:
        return source.pools()
    except NotReadyError as error:
        return error
