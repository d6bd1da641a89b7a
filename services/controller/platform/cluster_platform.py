"""The platform of a controller: Ray, on which it places replicas itself, or Kubernetes.

With a RayService, versions and placement stand in its serveConfigV2: the controller then
places nothing, reads nodes from Kubernetes, and builds in Jobs.
"""

from collections.abc import Callable
from dataclasses import dataclass

from services.contracts.errors import InvalidRequestError
from services.controller.api.fleet_state import FleetState
from services.controller.interfaces import (
    BuildLauncher,
    NodeSource,
    ReplicaFleet,
    ServeApplications,
)
from services.controller.platform.combined import CombinedNodes
from services.controller.platform.fleet_file import FleetFile
from services.controller.platform.ray.ray_nodes import RayNodes
from services.controller.platform.ray.ray_tasks import RayBuildLauncher
from services.controller.platform.ray.replica_fleet import RayServeFleet
from services.controller.platform.ray.serve_apps import RayServeApps
from services.controller.platform.ray.session_logs import link_logs, session_logs
from services.controller.settings import ControllerSettings


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
    replicas = RayServeFleet(settings.ray_address, settings.replica_app)
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
    from services.controller.platform.kubernetes.client import find_cluster
    from services.controller.platform.kubernetes.job_template import read_template
    from services.controller.platform.kubernetes.jobs import KubernetesJobs
    from services.controller.platform.kubernetes.nodes import KubernetesNodes
    from services.controller.platform.kubernetes.placed_by_ray_service import PlacedByRayService
    from services.controller.platform.kubernetes.servers import KubernetesServers

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
