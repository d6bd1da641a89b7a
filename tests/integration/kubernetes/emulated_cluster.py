"""A Kubernetes API on the loopback: kmock's emulator, with the authorization that it lacks.

It keeps objects and streams their changes. It knows no label selectors, no resource versions
and no schemas, so what depends on those is tested elsewhere.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import aiohttp.web
import kmock
from lightkube import KubeConfig
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import Cluster, User

from services.replica.closing import stop_accepting

NAMESPACE = "smelt"
# Who may do everything, and is not counted.
_TESTS = "tests"
_VERBS = ["get", "list", "watch", "patch", "create", "update", "delete"]
_RESOURCES = (
    ("v1/nodes", "Node", False),
    ("v1/pods", "Pod", True),
    ("v1/events", "Event", True),
    ("batch/v1/jobs", "Job", True),
    ("apps/v1/deployments", "Deployment", True),
    ("v1/services", "Service", True),
)
RAY_SERVICES = ("ray.io/v1/rayservices", "RayService", True)
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


@dataclass(frozen=True)
class Asked:
    """One request as RBAC rules name it."""

    verb: str
    group: str
    resource: str


class _Emulator(kmock.KubernetesEmulator):
    """Refuses what is not granted, as an API server with RBAC does."""

    def __init__(self) -> None:
        super().__init__()
        self.granted: frozenset[Asked] | None = None
        self.asked: set[Asked] = set()
        self.queries: list[tuple[Asked, dict[str, str]]] = []
        self.answered = asyncio.Event()

    async def __call__(self, raw_request: Any) -> aiohttp.web.StreamResponse:
        if raw_request.headers["User-Agent"] != _TESTS:
            wanted = asked_by(raw_request.method, raw_request.path, "watch" in raw_request.query)
            self.asked.add(wanted)
            self.queries.append((wanted, dict(raw_request.query)))
            if self.granted is not None and wanted not in self.granted:
                return _forbidden(wanted)
        try:
            return await super().__call__(raw_request)
        finally:
            self.answered.set()

    def num_streams(self, kind: str) -> int:
        """How many watches would be told of the next change; kmock has no public word for it."""
        buses = self._buses.items()
        return sum(bus.consumer_count for resource, bus in buses if resource.plural == kind)


def asked_by(method: str, path: str, is_watch: bool) -> Asked:
    """The verb, group and resource of a request."""
    parts = path.strip("/").split("/")
    group, parts = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    reading = "get" if len(parts) > 1 else "watch" if is_watch else "list"
    verbs = {"GET": reading, "POST": "create", "DELETE": "delete", "PATCH": "patch"}
    return Asked(verbs[method], group, parts[0])


def _forbidden(wanted: Asked) -> aiohttp.web.Response:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": f'{wanted.resource} is forbidden: User "controller" cannot {wanted.verb}',
        "reason": "Forbidden",
        "code": 403,
    }
    return aiohttp.web.json_response(status, status=403)


class EmulatedCluster:
    """The emulator and the server in front of it, which may go and come back."""

    def __init__(self, *, has_ray: bool = True) -> None:
        self.emulator = _Emulator()
        for name, kind, namespaced in (*_RESOURCES, *((RAY_SERVICES,) if has_ray else ())):
            self.emulator.resources[name] = kmock.ResourceInfo(
                kind=kind, singular=kind.lower(), namespaced=namespaced, verbs=_VERBS
            )
        self._listener: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen; the second time on the same port."""
        # A stream whose connection is lost ends, and its watch counts no more.
        self._web = aiohttp.web.Server(self.emulator, handler_cancellation=True)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._web, "127.0.0.1", self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        """Serve until the block ends."""
        await self.emulator.__aenter__()
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Stop; what the emulator found wrong is raised."""
        await self.stop()
        await self.emulator.__aexit__(*error)

    async def stop(self) -> None:
        """Break all connections, streams included, and listen no more."""
        if self._listener is None:
            return
        await stop_accepting(self._listener)
        self.break_connections()
        # The loop tells the server of its lost connections; else it waits for their streams.
        await asyncio.sleep(0)
        await self._web.shutdown(1)
        self._listener = None

    def break_connections(self) -> None:
        """Cut every connection in the middle of whatever it carries."""
        for connection in self._web.connections:
            if connection.transport is not None:
                connection.transport.abort()

    @property
    def config(self) -> SingleConfig:
        """How a client finds it."""
        cluster = Cluster(server=f"http://127.0.0.1:{self.port}")
        config = KubeConfig.from_one(cluster=cluster, user=User(), namespace=NAMESPACE).get()
        assert config is not None
        return config

    async def create(self, path: str, document: dict[str, Any]) -> None:
        """Create an object, as somebody else would."""
        await self._send("POST", path, json=document)

    async def patch(self, path: str, change: dict[str, Any]) -> None:
        """Merge a change into an object."""
        headers = {"Content-Type": "application/merge-patch+json"}
        await self._send("PATCH", path, json=change, headers=headers)

    async def delete(self, path: str) -> None:
        """Delete an object."""
        await self._send("DELETE", path)

    async def _send(self, method: str, path: str, **arguments: Any) -> None:
        # A connection of its own: those that are kept are cut with the others.
        address = f"http://127.0.0.1:{self.port}{path}"
        headers = {"User-Agent": _TESTS} | arguments.pop("headers", {})
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, address, headers=headers, **arguments) as answer,
        ):
            assert answer.status < 300, await answer.text()

    async def until(self, is_so: Callable[[], bool], limit_s: float) -> None:
        """Wait for a state of the objects; looked at after each request that was answered."""
        async with asyncio.timeout(limit_s):
            while not is_so():
                self.emulator.answered.clear()
                await self.emulator.answered.wait()

    async def until_streams(self, kind: str, wanted: int, limit_s: float) -> None:
        """Wait until so many watches of a kind would be told of the next change.

        A watch that was answered is not yet one that listens, and the emulator tells nobody
        when it is.
        """
        async with asyncio.timeout(limit_s):
            while self.emulator.num_streams(kind) != wanted:  # noqa: ASYNC110 - see above
                await asyncio.sleep(0.001)

    def objects(self, kind: str) -> dict[str, dict[str, Any]]:
        """What is stored, by name; `kind` is the plural."""
        return {
            name: dict(found.raw)
            for (resource, _, name), found in self.emulator.objects.items()
            if resource.plural == kind and not found.deleted
        }


def gpu_node(name: str, major: int, minor: int, **labels: str) -> dict[str, Any]:
    """A Ready node with GPU Feature Discovery's labels."""
    given = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
    found = {
        "nvidia.com/gpu.compute.major": str(major),
        "nvidia.com/gpu.compute.minor": str(minor),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": found | given},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
