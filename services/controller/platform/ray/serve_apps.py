"""External models that are applications of Ray Serve, which builds them in tasks of its own.

They stand in Serve's declarative config. To apply one ends the applications of the config before
that it has not: those of others are kept in it. Replicas, which `serve.run` deployed, are in none.
"""

import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Final

from services.contracts.errors import ExternalServerError, NotReadyError
from services.contracts.external.dial import one_line
from services.contracts.external.external_model import ExternalModel, Starter
from services.contracts.security.fleet_security import is_loopback
from services.controller.platform.ray.replica_fleet import retried, status_words

_PREFIX: Final = "smelt-external:"
_PROXY: Final = "smelt-http-proxy"
_PROXY_READY_S: Final = 20.0


class RayServeApps:
    """Applications by their import paths, behind one HTTP proxy that is there while they are.

    Serve decides when it starts whether it has proxies, and where: this one is an actor beside
    those, and costs a fleet without applications nothing.
    """

    starter = Starter.RAY

    def __init__(self, host: str) -> None:
        """Nothing is asked of Ray yet; `host` is where replicas listen."""
        self._host = host
        # One call starts the proxy, and none does once the last application is gone.
        self._lock = Lock()

    def apply(self, models: Sequence[ExternalModel], kept: Collection[str] = ()) -> bool:
        """Have these run, and no other but those of kept names; whether one runs, or still ends."""
        from ray.serve.context import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        client = _get_global_client()
        details = retried(client.get_serve_details)
        found = details["applications"]
        declared = {
            name: app["deployed_app_config"] for name, app in found.items() if _is_declared(app)
        }
        stay = tuple(f"{_PREFIX}{name}:" for name in kept)
        wanted = {
            name: config
            for name, config in declared.items()
            if not name.startswith(_PREFIX) or name.startswith(stay)
        }
        for model in models:
            wanted[_name(model)] = {
                "name": _name(model),
                "route_prefix": model.route_prefix,
                "import_path": model.import_path,
                "args": model.args,
            }
        if wanted != declared:
            capacity = details.get("target_capacity")
            config = {"applications": list(wanted.values()), "target_capacity": capacity}
            retried(lambda: client.deploy_apps(ServeDeploySchema.model_validate(config)))
        is_any = bool(models) or any(name.startswith(_PREFIX) for name in found)
        if not is_any:
            self.end_proxy()
        return is_any

    def end_proxy(self) -> None:
        """End the proxy, an earlier controller's too; it may not be there."""
        import ray
        from ray.serve._private.constants import SERVE_NAMESPACE

        with self._lock, suppress(ValueError):  # there is none
            ray.kill(ray.get_actor(_PROXY, namespace=SERVE_NAMESPACE))

    def find(self, model: ExternalModel) -> ExternalModel:
        """A model as its running application is asked.

        Raises:
            NotReadyError: it is being deployed.
            ExternalServerError: it could not be; the message has Serve's reason.
        """
        from ray import serve
        from ray.serve.schema import ApplicationStatus

        with self._lock:
            found = retried(serve.status).applications.get(_name(model))
            why = one_line(status_words(found)) if found else ""
            if found and found.status is ApplicationStatus.DEPLOY_FAILED:
                raise ExternalServerError(why)
            if not found or found.status not in (
                ApplicationStatus.RUNNING,
                ApplicationStatus.UNHEALTHY,
            ):
                raise NotReadyError("Ray Serve deploys its application" + (why and f": {why}"))
            return model.behind(_proxy_address(self._host))


def _is_declared(app: Mapping[str, Any]) -> bool:
    """Whether a config has it: Serve keeps those of deleted and of replaced ones by their names."""
    is_here = app.get("source") == "declarative" and app.get("status") != "DELETING"
    return is_here and bool(app.get("deployed_app_config"))


def _proxy_address(host: str) -> str:
    """Of the proxy, which is started where there is none, on the controller's node."""
    import ray

    # It has no public name, as Serve starts all proxies itself.
    from ray.serve._private.proxy_state import ActorProxyWrapper
    from ray.serve.config import HTTPOptions, gRPCOptions
    from ray.serve.schema import LoggingConfig

    node_address = ray.util.get_node_ip_address()
    host = host if is_loopback(host) else node_address
    with socket.create_server((host, 0)) as free:
        port = free.getsockname()[1]
    proxy = ActorProxyWrapper(
        LoggingConfig(log_level="WARNING"),
        http_options=HTTPOptions(host=host, port=port),
        grpc_options=gRPCOptions(),
        name=_PROXY,
        node_id=ray.get_runtime_context().get_node_id(),
        node_ip_address=node_address,
    ).actor_handle
    try:
        ray.get(proxy.ready.remote(), timeout=_PROXY_READY_S)
        # An earlier controller may have started it, on a port that this one does not know.
        asked = proxy._get_http_options.remote()  # noqa: SLF001 - no public one
        options = ray.get(asked, timeout=_PROXY_READY_S)
    except ray.exceptions.GetTimeoutError as error:
        # It may be busy, with others' requests: it is left, and asked again.
        raise NotReadyError(
            f"Ray Serve's HTTP proxy does not answer in {_PROXY_READY_S:g} s"
        ) from error
    except ray.exceptions.RayError as error:
        ray.kill(proxy)
        raise NotReadyError(f"Ray Serve's HTTP proxy does not start: {one_line(error)}") from error
    return f"{options.host}:{options.port}"


def _name(model: ExternalModel) -> str:
    return f"{_PREFIX}{model.name}:{model.version}"
