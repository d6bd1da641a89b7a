"""The controller's page on a port, over a fleet that a test says."""

import asyncio
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from prometheus_client import CollectorRegistry

from services.contracts.builds.build_record import BuildOutcome
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind
from services.contracts.hardware.node_class import NodeClass
from services.contracts.registry.registry import Registry
from services.contracts.security.fleet_security import FleetTokens, page_token
from services.contracts.selection.proof_checks import PowerCheck
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_view import FleetView
from services.controller.page.page_app import PageApp, Seen
from services.pb import fleet_v1_pb2 as fleet
from services.telemetry.prometheus_recorder import serve_metrics
from tests.unit.services.controller import build_world as world

TOKEN = "0123456789abcdef"
GENERATIONS = ("cpu-x86_64-v3", "cuda-sm80", "cuda-sm90")
POWER = PowerCheck(output="y", refused=("rows shuffled", "sign flipped"), blind=("gain 2 % off",))
_T = TypeVar("_T")


class PageHost:
    """A fleet's state in an event loop of its own, and the page of it.

    Attributes:
        view: what the build loop read last.
        now_s, looked_s: what clocks show, and when the controller looked last.
        broken: a status that answers all but the page itself; "" for none.
    """

    def __init__(self, registry: Registry, token: str = TOKEN) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.registry, self.state = registry, self.do(lambda: FleetState("/store", 1))
        self.view: FleetView | None = FleetView()
        self.now_s = self.looked_s = 100.0
        self.broken = ""
        self._snapshot = self.do(self.state.snapshot)
        tokens = FleetTokens(None, given=token) if token else None
        self._app = PageApp(
            registry, self._seen, lambda: self.looked_s, tokens, clock=lambda: self.now_s
        )
        self._server = serve_metrics(0, CollectorRegistry(), elsewhere=self._answer)
        self.origin = f"http://127.0.0.1:{self._server.port}"
        self.url = f"{self.origin}/#token={page_token(token)}"
        self.bearer = f"Bearer {page_token(token)}"

    def _seen(self) -> Seen:
        """As the controller's metrics see it: another snapshot after each change alone."""
        if self._snapshot.revision != self.state.revision:
            self._snapshot = self.do(self.state.snapshot)
        return self._snapshot, (self.view, self.registry) if self.view else None

    def do(self, what: Callable[[], _T]) -> _T:
        """Call something in the event loop."""

        async def called() -> _T:
            return what()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(60)

    def get(self, path: str, **headers: str) -> tuple[int, Any, Any]:
        """Status, headers and document or text of an answer; with the page's token by default."""
        sent = {"Authorization": self.bearer, "Accept-Encoding": "gzip"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        try:
            with urlopen(Request(self.origin + path, headers=sent)) as answer:
                return 200, answer.headers, _read(answer)
        except HTTPError as error:
            with error:
                return error.code, error.headers, _read(error)

    def close(self) -> None:
        self._server.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _answer(self, environ: Any, start_response: Any) -> Any:
        if self.broken and environ["PATH_INFO"] != "/":
            start_response(self.broken, [])
            return [b""]
        return self._app(environ, start_response)


def _read(answer: Any) -> Any:
    body = answer.read()
    if answer.headers.get("Content-Encoding") == "gzip":
        body = gzip.decompress(body)
    is_json = (answer.headers.get("Content-Type") or "").startswith("application/json")
    return json.loads(body) if is_json else body.decode()


@contextmanager
def page_host(folder: Path, token: str = TOKEN, *, is_hasty: bool = False) -> Iterator[PageHost]:
    """One with version 1 of model `m` in its store, and nothing in its fleet."""
    host = PageHost(world.registry_with_model(folder), token)
    try:
        yield host
    finally:
        host.close()


def served_model(name: str = "m", **changes: Any) -> fleet.ServedModel:
    """Version 1 of a model that is ready."""
    return fleet.ServedModel(**{"name": name, "version": 1, "state": "READY"} | changes)


def device(generation: str) -> DeviceFacts:
    return DeviceFacts(generation=generation, name="d", memory_gib=64)


def report(
    name: str = "m", generation: str = GENERATIONS[0], **changes: Any
) -> fleet.ReplicaReport:
    """A replica of version 1 that is ready and serves on the fallback."""
    fields: dict[str, Any] = {
        "replica_id": f"{name}@{generation}",
        "model_name": name,
        "model_version": 1,
        "state": fleet.REPLICA_STATE_READY,
        "fallback_reason": "no_engine",
        "fallback_name": "ONNX Runtime",
        "device_facts_json": device(generation).canonical_json(),
    }
    return fleet.ReplicaReport(**fields | changes)


def serving(name: str, generation: str, digest: str, kind: str = "openvino") -> fleet.ReplicaReport:
    """A replica that serves with an engine."""
    engine = {"engine_digest": digest, "engine_kind": kind, "engine_precision": "fp32"}
    return report(name, generation, fallback_reason="", **engine)


def fill(host: PageHost, num_models: int) -> None:
    """Models on three generations: most ready with an engine, some on the fallback, some failed."""
    pools = [world.pool(node_class=NodeClass.from_facts(device(g))) for g in GENERATIONS]
    versions, plans, engines, records, replicas, models = [], {}, {}, {}, [], []
    for number in range(num_models):
        name, master = f"model-{number:04d}", f"{number:064x}"
        record = world.MASTER.model_copy(update={"digest": master})
        versions.append(world.version(name=name, master=record))
        models.append(served_model(name, model_version_json=b"x" * 3000))
        made = []
        for generation in GENERATIONS:
            facts = device(generation)
            kinds = (EngineKind.OPENVINO, EngineKind.ONNXRUNTIME)
            keys = tuple(
                world.key(kind, master_digest=master, generation=generation) for kind in kinds
            )
            made.append(
                world.plan(keys, model=name, node_class=NodeClass.from_facts(facts), facts=facts)
            )
            proof = world.proof(timings=world.paired(2.0, 2.2), device=facts, power=(POWER,))
            engines |= {key.digest(): world.engine(key, proof) for key in keys}
            digest = keys[0].digest()
            if number % 10 == 3:
                replicas.append(report(name, generation))
            elif number % 50 == 7:
                engines.pop(digest)
                failed = world.record(
                    keys[0], BuildOutcome.FAILED, reason="the compiler ended by signal 11"
                )
                records[digest] = [failed] * 3
                replicas.append(report(name, generation))
            else:
                replicas.append(serving(name, generation, digest))
        plans[name, 1] = made
    host.view = FleetView(
        pools=pools, versions=versions, plans=plans, engines=engines, records=records
    )

    def show() -> None:
        for model in models:
            host.state.set_model(model)
        for each in replicas:
            host.state.attach(each)

    host.do(show)
