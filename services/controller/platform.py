"""The platform of a controller: Ray, on which it places replicas itself, or Kubernetes.

With a RayService, versions and placement stand in its serveConfigV2: the controller then
places nothing, learns of nodes from Kubernetes, and builds in Jobs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.contracts.errors import InvalidRequestError, UnsupportedFeatureError
from services.controller.fleet_state import FleetState
from services.controller.interfaces import BuildLauncher, NodeSource
from services.controller.launchers.ray_tasks import RayBuildLauncher
from services.controller.replica_fleet import DeploymentKey, RayServeFleet, ReplicaFleet
from services.controller.settings import ControllerSettings
from services.controller.sources.combined import CombinedNodes
from services.controller.sources.fleet_file import FleetFile
from services.controller.sources.ray_nodes import RayNodes


@dataclass(frozen=True, kw_only=True)
class ClusterPlatform:
    """Where replicas are placed, nodes are seen and builds run.

    Attributes:
        close: ends threads and connections; each may block.
    """

    replicas: ReplicaFleet
    nodes: NodeSource
    launcher: BuildLauncher
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
    replicas = RayServeFleet(settings.ray_address, settings.replica_app)
    replicas.start()
    launcher = RayBuildLauncher(
        store_url=settings.store_url,
        cache_dir=str(settings.cache_dir.absolute()),
        num_threads=settings.replica_num_threads,
        extra_arguments=tuple(settings.build_arguments.split()),
    )
    nodes = CombinedNodes([RayNodes()], _described(settings))
    return ClusterPlatform(replicas=replicas, nodes=nodes, launcher=launcher)


def _in_kubernetes(
    settings: ControllerSettings, state: FleetState, on_nodes_changed: Callable[[], None]
) -> ClusterPlatform:
    from services.controller.kubernetes.client import find_cluster
    from services.controller.kubernetes.job_template import read_template
    from services.controller.kubernetes.jobs import KubernetesJobs
    from services.controller.kubernetes.nodes import KubernetesNodes

    if settings.job_template is None:
        raise InvalidRequestError(
            "SMELT_CONTROLLER_JOB_TEMPLATE is not set: builds run in Kubernetes Jobs here; give "
            "the file of a batch/v1 Job, as k8s/base has one"
        )
    cluster = find_cluster()
    namespace = settings.kubernetes_namespace or cluster.namespace
    template = read_template(settings.job_template)
    jobs = KubernetesJobs(cluster, namespace, template, image=settings.compiler_image)
    nodes = KubernetesNodes(cluster, namespace, on_nodes_changed)
    nodes.start()
    return ClusterPlatform(
        replicas=PlacedByRayService(state, nodes.num_replicas_wanted),
        nodes=CombinedNodes([nodes], _described(settings)),
        launcher=jobs,
        close=(nodes.stop, jobs.close),
    )


def _described(settings: ControllerSettings) -> list[NodeSource]:
    return [FleetFile(settings.fleet_file)] if settings.fleet_file else []


class PlacedByRayService:
    """A ReplicaFleet that places nothing: replicas are a RayService's, and attach."""

    is_placing = False
    absence = "no replica of it is ready; the RayService places them, from its serveConfigV2"

    def __init__(self, state: FleetState, num_wanted: Callable[[str, int], int | None]) -> None:
        """`state` has the replicas that attached; `num_wanted` how many are asked for."""
        self._state, self.num_wanted = state, num_wanted

    def start(self) -> None:
        """Nothing to start."""

    def deploy(self, key: DeploymentKey, args: dict[str, Any]) -> None:
        """Refuse; raises UnsupportedFeatureError."""
        raise UnsupportedFeatureError(f"{key}: the RayService places replicas, not {args}")

    def deployed(self) -> list[DeploymentKey]:
        """What attached replicas serve."""
        return self._state.ready_keys()

    def is_running(self, key: DeploymentKey) -> bool:  # noqa: ARG002
        """What attached is ready."""
        return True

    def unplaced(self, key: DeploymentKey) -> str:  # noqa: ARG002
        """Nothing: what did not attach is not known here."""
        return ""

    def remove(self, key: DeploymentKey) -> None:
        """Nothing: the RayService's next serveConfigV2 leaves it out."""

    def metrics_addresses(self) -> list[str]:
        """None: PodMonitors find the agents."""
        return []

    def stop(self) -> None:
        """Nothing to stop."""
