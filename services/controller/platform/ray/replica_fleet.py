"""The one place that calls Ray Serve: applications of a cluster that was joined."""

import importlib
import re
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from services.contracts.errors import InvalidRequestError, NotReadyError
from services.controller.interfaces import DeploymentKey, Unplaced
from services.controller.platform.ray.cluster_owner import check_owner, claim_cluster
from services.controller.platform.ray.placement import unplaced
from services.controller.room import Held, Room
from services.controller.settings import ADDRESS_ON_INPUT

_T = TypeVar("_T")

_PREFIX = "smelt"
_SEPARATOR = ":"
# Of Python's own exceptions with the class: that of a KeyError says what is missing, and not why.
_RAISED = re.compile(
    r"^(?:(?:\w+\.)+\w+(?:Error|Exception): |(?=\w+(?:Error|Exception): ))(.+)$", re.MULTILINE
)
_CONNECT_S = 10.0
# The message of Ray's cloudpickle.
_PICKLER_CLASH = "is not registered for pickle by value"
_MAX_PICKLER_CLASHES = 20
# Serve looks ten times a second at what is to be there.
_END_PERIOD_S = 0.2
_NUM_ENDS = 5


class RayServeFleet:
    """Ray Serve as placement and restarts only: requests never pass through it."""

    is_placing = True
    absence = "no node of the fleet has a label with its generation; see: smelt node-labels"

    def __init__(self, address: str, replica_app: str, store_url: str) -> None:
        """Nothing is joined yet.

        Args:
            address: of the cluster; `auto` finds one of this host, `-` reads a line of standard
                input, which comes when a Ray that starts meanwhile is up.
            replica_app: import path of what makes a Serve application.
            store_url: of the fleet; a cluster has one at a time.
        """
        self._address = address
        self._replica_app = replica_app
        self._store_url = store_url

    def start(self) -> None:
        """Join Ray, and start Serve without its HTTP and gRPC proxies.

        Raises:
            InvalidRequestError: the cluster to join does not answer, or does not know us, or has
                another fleet; or there is none, as the Ray that was to come did not.
        """
        import ray
        from ray import serve

        address = self._awaited() if self._address == ADDRESS_ON_INPUT else self._address
        try:
            _check_reachable(address)
            ray.init(address=address, log_to_driver=False, logging_level="warning")
        except OSError as error:
            raise InvalidRequestError(
                f"Ray at {address} cannot be joined: {error}. Is its head node up, and does "
                "this host have its token? A Ray that was started by a user with a file "
                "~/.ray/auth_token wants that file, and RAY_AUTH_MODE=token, on every host"
            ) from error
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        claim_cluster(self._store_url, retried(serve.status).applications)

    def _awaited(self) -> str:
        # What takes long to import, while there is nothing to do; a deployment tells what fails.
        with suppress(InvalidRequestError):
            load_function(self._replica_app)
        if address := sys.stdin.readline().strip():
            return address
        raise InvalidRequestError(
            "standard input, which was to bring the address of a Ray that starts, has ended: that "
            "Ray did not start; its log has the reason"
        )

    def deploy(self, key: DeploymentKey, args: dict[str, Any]) -> None:
        """Submit the application that the configured import path makes.

        Raises InvalidRequestError for an import path without such a function, and where another
        fleet has joined the cluster since.
        """
        from ray import serve
        from ray.serve.api import RunTarget

        application = retried(partial(load_function(self._replica_app), args))
        check_owner(self._store_url)
        # Without a route: the default is `/`, which only one application of a cluster may have.
        target = RunTarget(application, name=application_name(key), route_prefix=None)
        retried(partial(serve.run_many, [target], wait_for_applications_running=False))

    def deployed(self) -> list[DeploymentKey]:
        """Serve's applications that are Smelt's."""
        from ray import serve

        keys = map(key_from_application, retried(serve.status).applications)
        return [key for key in keys if key is not None]

    def is_running(self, key: DeploymentKey) -> bool:
        """Whether Serve calls the application running.

        Raises:
            NotReadyError: it was deleted, or Serve gave its deployment up; with Serve's reason.
        """
        from ray import serve
        from ray.serve.schema import ApplicationStatus

        what = f"model '{key.name}' version {key.version} on {key.generation}"
        found = retried(serve.status).applications.get(application_name(key))
        if found is None:
            raise NotReadyError(f"{what}: its application was deleted")
        if found.status is ApplicationStatus.DEPLOY_FAILED:
            raise NotReadyError(f"{what}: {status_words(found)}")
        return bool(found.status is ApplicationStatus.RUNNING)

    def unplaced(self, key: DeploymentKey) -> Unplaced:
        """By what Ray seeks a node for, what the nodes have and which applications are there."""
        import ray

        # What Ray itself shows of each node; in public it only adds them up.
        from ray._private.state import available_resources_per_node

        deployments = _deployments()
        if key not in deployments:
            return Unplaced()
        room = _rooms(deployments)[key.generation]
        num_waiting = len(deployments[key]["replicas"]) - len(room.held[key].nodes)
        if not num_waiting or not room.is_pending(room.held[key].amounts):
            return Unplaced()
        return unplaced(num_waiting, key, ray.nodes(), available_resources_per_node(), room.held)

    def rooms(self) -> dict[str, Room]:
        """By what Serve's applications ask for, beside what Ray's nodes have."""
        return _rooms(_deployments())

    def num_wanted(self, model: str, version: int) -> int | None:  # noqa: ARG002
        """None: the reconcile loop places them, and knows."""
        return None

    def remove(self, key: DeploymentKey) -> None:
        """Have the application deleted; it is listed until its replicas have ended."""
        from ray import serve

        replicas = _deployments().get(key, {}).get("replicas", ())
        placed = {each.get("actor_name") for each in replicas if each.get("node_id")}
        # Not waited for: that would hold a thread for as long as the replicas drain.
        serve.delete(application_name(key), _blocking=False)
        if not placed or len(placed) < len(replicas):
            _end_unplaced(application_name(key), placed)

    def metrics_addresses(self) -> list[str]:
        """Where Ray's agents export what actors of their nodes record."""
        import ray

        alive = [node for node in ray.nodes() if node["Alive"]]
        return sorted(f"{n['NodeManagerAddress']}:{n['MetricsExportPort']}" for n in alive)

    def stop(self) -> None:
        """Leave the cluster; it outlives its controllers, and so does what it serves."""
        import ray

        ray.shutdown()


def _deployments() -> dict[DeploymentKey, dict[str, Any]]:
    """The one deployment of each application, with its configuration and its replicas' nodes."""
    from ray.serve.context import _get_global_client

    # What Serve's dashboard shows; its public status has neither.
    client = _get_global_client()
    found = retried(client.get_serve_details)["applications"] if client else {}
    return {
        key: deployment
        for name, application in found.items()
        if (key := key_from_application(name))
        for deployment in application["deployments"].values()
    }


def _rooms(deployments: Mapping[DeploymentKey, dict[str, Any]]) -> dict[str, Room]:
    """By generation, of those that Serve details."""
    import ray
    from ray._private.state import available_resources_per_node

    held = {key: Held.of(found) for key, found in sorted(deployments.items())}
    nodes = [node for node in ray.nodes() if node["Alive"]]
    free = available_resources_per_node()
    pending = _pending()
    generations = {key.generation for key in held}
    return {each: Room.of(each, nodes, free, held, pending[each]) for each in sorted(generations)}


def _pending() -> defaultdict[str, list[Mapping[str, float]]]:
    """What requests want for which Ray seeks a node, by the labels that it must have."""
    from ray._private.worker import global_worker
    from ray.autoscaler.v2.sdk import get_cluster_resource_state

    found: defaultdict[str, list[Mapping[str, float]]] = defaultdict(list)
    state = get_cluster_resource_state(global_worker.gcs_client)
    for request in (pending.request for pending in state.pending_resource_requests):
        for selector in request.label_selectors:
            for constraint in selector.label_constraints:
                for value in constraint.label_values:
                    found[value].append(dict(request.resources_bundle))
    return found


def _end_unplaced(application: str, placed: Collection[str | None]) -> None:
    """End what has no place and cannot drain: Serve would wait for it as for others.

    Args:
        application: that is being deleted.
        placed: names of its replicas that run.
    """
    import ray

    # Until it knows of the deletion, Serve starts another one in the place of each: so all are
    # looked for a few times, after the moment that a start takes.
    for _ in range(_NUM_ENDS):
        time.sleep(_END_PERIOD_S)  # Serve has no event of a start or of a deletion
        for actor in ray.util.list_named_actors(all_namespaces=True):
            name = actor["name"]
            if name.startswith(f"SERVE_REPLICA::{application}#") and name not in placed:
                with suppress(ValueError):  # it has gone
                    ray.kill(ray.get_actor(**actor))


def raised_words(message: str) -> str:
    """The last exception's message in Serve's about a deployment; "" without one.

    Serve puts a replica's whole traceback there, while its message about the application only
    names a fault.
    """
    return next(iter(_RAISED.findall(message)[::-1]), "")


def status_words(status: Any) -> str:
    """What Serve says of an application and its deployments: exceptions where it quotes some."""
    messages = [status.message, *(each.message for each in status.deployments.values())]
    raised = filter(None, map(raised_words, messages))
    return "; ".join(raised) or " ".join(filter(None, messages))


def application_name(key: DeploymentKey) -> str:
    """The Serve application of a deployment; the separator is in none of the parts."""
    return _SEPARATOR.join((_PREFIX, key.name, str(key.version), key.generation))


def retried(ask: Callable[[], _T]) -> _T:
    """Call Serve, again where another thread uses its pickler.

    Each Serve configuration, and so each status, registers one module with the pickler and
    unregisters it. A lock around all calls would let one submission that hangs block every caller.
    Raises whatever `ask` raises.
    """
    for _ in range(_MAX_PICKLER_CLASHES):
        try:
            return ask()
        except ValueError as error:
            if _PICKLER_CLASH not in str(error):
                raise
    return ask()


def key_from_application(name: str) -> DeploymentKey | None:
    """The deployment of a Serve application; None when it is not Smelt's."""
    prefix, *parts = name.split(_SEPARATOR)
    if prefix != _PREFIX or len(parts) != 3:
        return None
    return DeploymentKey(parts[0], int(parts[1]), parts[2])


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


def _check_reachable(address: str) -> None:
    """Open a connection, before Ray tries for minutes; raises OSError."""
    host, is_split, port = address.rpartition(":")
    if is_split and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
