"""Ray's node of one host, without what Ray waits for while it starts and has no use for then.

It waits for a dashboard's process that does nothing, and its raylet for two agents to say where
they listen: these are Python processes, and after 15 s, which a busy host takes, the raylet ends.
Two more scale a cluster, and bring workers' logs to a driver: each takes two seconds and 0.1 GiB.
Its first driver waits until idle workers run, so others are to join without waiting for that one.
"""

import random
import socket
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from typing import Any, Final

from ray._private.node import Node
from ray._raylet import persist_port  # type: ignore[attr-defined]  # of a C extension

# Below those that the kernel hands out, and those of Kubernetes' services: agents bind them later.
_FIRST_PORT: Final = 20_000
_LAST_PORT: Final = 29_999
_MOST_TRIES: Final = 1000
_WORKER: Final = "services.replica.ray_worker.__main__"
_LISTENING: Final = "dashboard_agent_listen_port"
_AGENT_PORTS: Final = (
    "metrics_agent_port",
    "metrics_export_port",
    "runtime_env_agent_port",
    _LISTENING,
)


def node_class(on_up: Callable[[Node], None]) -> type[Node]:
    """What `ray.init` is to make; `on_up` is called once others can join it."""

    class LocalNode(Node):  # type: ignore[misc]  # Ray has no types
        def __init__(self, ray_params: Any, *args: Any, **kwargs: Any) -> None:
            # One host is not scaled, and logs are read where they lie.
            ray_params.update(no_monitor=True, include_log_monitor=False)
            super().__init__(ray_params, *args, **kwargs)
            on_up(self)

        def start_api_server(self, *_: Any, **__: Any) -> None:
            """Start no dashboard; there is no setting for that."""

        def start_raylet(self, *args: Any, **kwargs: Any) -> None:
            """Start it with the ports of its agents, and with workers that are forked."""
            ports = dict(zip(_AGENT_PORTS, free_ports(len(_AGENT_PORTS)), strict=True))
            self._ray_params.update(**ports, setup_worker_path=_worker_script())
            # This one is no argument of the raylet, which reads the agent's file.
            persist_port(self._session_dir, self._node_id, _LISTENING, ports[_LISTENING])
            super().start_raylet(*args, **kwargs)

    return LocalNode


def _worker_script() -> str:
    spec = find_spec(_WORKER)
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


def free_ports(number: int) -> list[int]:
    """Different ports on which nothing listens now."""
    ports = random.sample(range(_FIRST_PORT, _LAST_PORT + 1), _MOST_TRIES)
    return list(islice(filter(_is_free, ports), number))


def _is_free(port: int) -> bool:
    with socket.socket() as tried, suppress(OSError):
        tried.bind(("", port))
        return True
    return False
