"""The one place that speaks to Ray: a Ray of our own or a cluster, and its applications."""

import importlib
import logging
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
        """Run replicas of one model version; returns when they are ready.

        Raises:
            NotReadyError: they did not become ready; the message holds Serve's words.
        """
        ...

    def remove(self, name: str, version: int) -> None:
        """Drain and stop the replicas of one model version."""
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
        )
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})

    def deploy(self, name: str, version: int, args: dict[str, Any]) -> None:
        """Run the application that the configured import path makes."""
        from ray import serve

        application = load_function(self._replica_app)(args)
        try:
            serve.run(application, name=application_name(name, version), route_prefix=None)
        except RuntimeError as error:
            raise NotReadyError(f"model '{name}' version {version}: {error}") from error

    def remove(self, name: str, version: int) -> None:
        """Delete the application."""
        from ray import serve

        serve.delete(application_name(name, version))

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
