"""The one place that speaks to Ray: a Ray of our own or a cluster, and its applications."""

import importlib
import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from services.contracts.errors import InvalidRequestError, NotReadyError

logger = logging.getLogger(__name__)


class ReplicaFleet(Protocol):
    """Places, restarts and removes replicas. Methods block; call them in a thread."""

    def start(self) -> None:
        """Make the cluster usable."""
        ...

    def deploy(self, name: str, version: int, args: dict[str, Any]) -> None:
        """Have replicas of one model version started; does not wait for them."""
        ...

    def is_running(self, name: str, version: int) -> bool:
        """Whether what `deploy` asked for is ready.

        Raises:
            NotReadyError: it never will be; the message holds Serve's words.
        """
        ...

    def remove(self, name: str, version: int) -> None:
        """Drain and stop the replicas of one model version."""
        ...

    def metrics_addresses(self) -> list[str]:
        """`host:port` of each node's metrics agent, sorted."""
        ...

    def stop(self) -> None:
        """Drain all replicas; end the cluster when it is our own."""
        ...


class RayServeFleet:
    """Ray Serve as placement and restarts only: requests never pass through it."""

    def __init__(self, address: str, num_cpus: int, replica_app: str) -> None:
        self._address = address
        self._num_cpus = num_cpus
        self._replica_app = replica_app
        self._submission = threading.Lock()

    def start(self) -> None:
        """Start or join Ray, and start Serve without its HTTP and gRPC proxies."""
        import ray
        from ray import serve

        is_own = self._address == "local"
        ray.init(
            address=self._address,
            num_cpus=(self._num_cpus or None) if is_own else None,
            include_dashboard=False if is_own else None,
            log_to_driver=False,
            logging_level="warning",
            # Ray starts workers at niceness 15: a busy neighbour would starve the replicas.
            _system_config={"worker_niceness": 0} if is_own else None,
        )
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})

    def deploy(self, name: str, version: int, args: dict[str, Any]) -> None:
        """Submit the application that the configured import path makes."""
        from ray import serve
        from ray.serve.api import RunTarget

        # Serve registers modules with its pickler while it builds an application: two
        # threads at once fail.
        with self._submission:
            application = load_function(self._replica_app)(args)
            what = application_name(name, version)
            target = RunTarget(application, name=what, route_prefix=None)
            serve.run_many([target], wait_for_applications_running=False)

    def is_running(self, name: str, version: int) -> bool:
        """Ask Serve for the application's status."""
        from ray import serve
        from ray.serve.schema import ApplicationStatus

        found = serve.status().applications.get(application_name(name, version))
        if found is None:
            raise NotReadyError(f"model '{name}' version {version}: its application was deleted")
        if found.status is ApplicationStatus.DEPLOY_FAILED:
            raise NotReadyError(f"model '{name}' version {version}: {found.message}")
        return bool(found.status is ApplicationStatus.RUNNING)

    def remove(self, name: str, version: int) -> None:
        """Delete the application."""
        from ray import serve

        serve.delete(application_name(name, version))

    def metrics_addresses(self) -> list[str]:
        """Where Ray's agents export what actors of their nodes record."""
        import ray

        living = [node for node in ray.nodes() if node["Alive"]]
        return sorted(f"{n['NodeManagerAddress']}:{n['MetricsExportPort']}" for n in living)

    def stop(self) -> None:
        """Delete every application, then end our own Ray."""
        import ray
        from ray import serve

        serve.shutdown()
        ray.shutdown()


def application_name(name: str, version: int) -> str:
    """The Serve application of one model version."""
    return f"smelt-{name}-{version}"


def load_function(import_path: str) -> Callable[[dict[str, Any]], Any]:
    """Import `package.module:function`; raises InvalidRequestError."""
    module_name, _, function_name = import_path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidRequestError(
            f"import path '{import_path}': {error}; expected package.module:function"
        ) from error
    return function  # type: ignore[no-any-return] # getattr knows no types
