"""Counts what one look of the controller asks of a store with many models, and times its start.

    python -m tests.benchmarks.store_lists FOLDER [--models N] [--engines N] [--beside CHECKOUT]

A store of N models with N proven engines each is made below FOLDER, once for each checkout. Then
a controller's three readers look at it: the deploy loop, the build loop and the metrics. The
first look of a new process is its start; the second one finds nothing new. Last an engine is
proven again, and one replica of that model selects anew. `--beside` runs the same in another
checkout of Smelt, to be compared in one run. Exit code 1 when this checkout misses a limit.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

from services.contracts.builds.build_plan import BuildPlan, PlannedKey
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.hardware.kinds import EngineKind
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import BlobRef, MasterRecord, ProofOutcome
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.history import BuildHistory
from services.contracts.store.object_store import ObstoreArtifactStore, open_store
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_loop import BuildLoop
from services.controller.deploy.reconcile import ReconcileLoop
from services.controller.metrics.build_metrics import BuildMetrics
from services.pb import fleet_v1_pb2 as fleet
from services.replica.engine.checker import EngineChecker
from services.replica.engine.manager import EngineManager
from services.telemetry.recorder import NullRecorder
from tests.documents import small_key, small_manifest, small_proof
from tests.unit.services.controller.build_world import DEVICE, InstantWorker, pool
from tests.unit.services.controller.deploy.reconcile_world import FakeFleet

AT = "2026-01-01T00:00:00.000+00:00"
MAX_LISTS, MAX_START_S = 20, 3.0
PAGE = 1000


class CountingStore:
    """A store that counts its requests, and the pages that S3 would answer a listing in."""

    def __init__(self, inner: ObstoreArtifactStore) -> None:
        self._inner = inner
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        """Everything else is the store's own."""
        return getattr(self._inner, name)

    def list(self, prefix: str) -> list[str]:
        """Count a listing, its keys and its pages."""
        keys = self._inner.list(prefix)
        self.counts["lists"] += 1
        self.counts["keys"] += len(keys)
        self.counts["pages"] += max(1, -(-len(keys) // PAGE))
        return keys

    def read(self, key: str) -> bytes:
        """Count a read."""
        self.counts["reads"] += 1
        return self._inner.read(key)


def fill(registry: Registry, num_models: int, num_engines: int) -> None:
    """Publish models with their plans, engines, proofs and records."""
    for number in range(num_models):
        master = MasterRecord(
            digest=f"{number:064x}",
            files={"model.onnx": BlobRef(sha256="0" * 64, num_bytes=1)},
            inputs=(),
            outputs=(),
            opset=23,
            num_parameters=0,
        )
        registry.add_model_version(
            name=f"m{number}", master=master, recipe=Recipe(), source="s", source_fingerprint="f"
        )
        keys = [
            small_key(master_digest=master.digest, builder_options={"n": str(n)}, kind=kind)
            for n in range(num_engines)
            for kind in [EngineKind.OPENVINO]
        ]
        plan = BuildPlan(
            model=f"m{number}",
            version=1,
            node_class=NodeClass.from_facts(DEVICE),
            facts=DEVICE,
            planned=tuple(PlannedKey(key=key) for key in keys),
            created_at=AT,
        )
        registry.write_plan(plan)
        for key in keys:
            proof = small_proof(ProofOutcome.PASSED).model_copy(update={"device": DEVICE})
            registry.publish_engine(small_manifest(key), {}, proof)
            registry.record_build(
                BuildRecord(key=key, outcome=BuildOutcome.PROVEN, stage="prove", started_at=AT)
            )


class Nodes:
    """One node of the class that everything is built for."""

    def pools(self) -> list[Any]:
        """The one pool."""
        return [pool()]


class Controller:
    """The three readers of a controller, over one registry."""

    def __init__(self, store: CountingStore, folder: Path) -> None:
        registry = Registry(store, folder / "cache")
        self.state, nodes = FleetState("store"), Nodes()
        self._deploying = ReconcileLoop(registry, nodes, self.state, FakeFleet(), {}, resync_s=60)
        self._building = BuildLoop(registry, nodes, InstantWorker(registry), self.state)
        history = BuildHistory(store)  # type: ignore[arg-type] # of one method more
        self._metrics = BuildMetrics(NullRecorder(), history, lambda: self._building.latest)

    async def look(self) -> None:
        """One look of each reader."""
        await self._deploying.reconcile()
        await self._building.sync()
        await asyncio.to_thread(self._metrics.look)


async def measure(folder: Path, num_models: int, num_engines: int) -> dict[str, Any]:
    """What a controller's looks and a replica's cost on a store that is made here."""
    plain = open_store(str(folder / "store"))
    if not plain.list("models/"):
        fill(Registry(plain, folder / "filling"), num_models, num_engines)
        # An earlier controller has kept the event trail.
        await Controller(CountingStore(plain), folder).look()
    store = CountingStore(plain)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    controller = Controller(store, folder)
    await controller.look()
    start_s, start_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    starting = Counter(store.counts)
    store.counts.clear()
    began_s = time.perf_counter()
    await controller.look()
    again_s = time.perf_counter() - began_s
    looking = Counter(store.counts)
    replica = await announced(controller, plain, folder)
    return {
        "start_s": start_s,
        "start_cpu_s": start_cpu_s,
        "start": starting,
        "again_s": again_s,
        "again": looking,
        "replica": replica,
    }


async def announced(
    controller: Controller, plain: ObstoreArtifactStore, folder: Path
) -> Counter[str]:
    """What one replica asks of the store after a proof was announced to it."""
    report = fleet.ReplicaReport(replica_id="r", model_name="m0", model_version=1)
    replica = controller.state.attach(report)
    store = CountingStore(plain)
    registry = Registry(store, folder / "replica")
    model = registry.model_version("m0")
    engine = registry.engines(model.master.digest)[0]
    checker = EngineChecker(folder / "checked")
    host = EngineManager(registry, model, DEVICE, _no_fallback, checker)
    Registry(plain, folder / "prover").add_proof(
        engine.digest, engine.proof.model_copy(update={"created_at": str(time.time())})
    )
    await controller.look()
    while not replica.commands.empty():
        command = replica.commands.get_nowait()
        if hasattr(host, "announce") and command:
            host.announce(command.engines_changed.document_keys)
    store.counts.clear()
    host.choose(None)
    return store.counts


def _no_fallback(_: object) -> Any:
    raise AssertionError("the fallback is not loaded here")


def main() -> int:
    """Measure here, and in the other checkout; print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--engines", type=int, default=20)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    if wanted.json:
        found = asyncio.run(measure(wanted.folder, wanted.models, wanted.engines))
        print(json.dumps(found))
        return 0
    checkouts = {"before": wanted.beside} if wanted.beside else {}
    rows = {
        name: in_checkout(path, wanted.folder / name, wanted.models, wanted.engines)
        for name, path in (checkouts | {"after": Path.cwd()}).items()
    }
    print(
        f"{wanted.models} models x {wanted.engines} engines, obstore {version('obstore')}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}"
    )
    for name, found in rows.items():
        print(f"{name}: the start takes {found['start_cpu_s']:.2f} s of processor time")
    print("| checkout | look | seconds | LIST calls | pages of 1,000 | keys | reads |")
    print("|---|---|---|---|---|---|---|")
    for name, found in rows.items():
        for look, seconds in (
            ("start", found["start_s"]),
            ("again", found["again_s"]),
            ("replica", None),
        ):
            each = Counter(found[look])
            took = "" if seconds is None else f"{seconds:.2f}"
            print(
                f"| {name} | {look} | {took} | {each['lists']} | {each['pages']} | "
                f"{each['keys']} | {each['reads']} |"
            )
    after = rows["after"]
    is_met = (
        after["again"]["lists"] <= MAX_LISTS
        and after["start"]["lists"] <= MAX_LISTS
        and not after["replica"].get("lists")
        and after["start_s"] <= MAX_START_S
    )
    return 0 if is_met else 1


def in_checkout(checkout: Path, folder: Path, num_models: int, num_engines: int) -> dict[str, Any]:
    """Measure with the code of a checkout, in a process of its own that has the store warm."""
    command = [
        sys.executable,
        str(Path(__file__).absolute()),
        str(folder),
        "--json",
        "--models",
        str(num_models),
        "--engines",
        str(num_engines),
    ]
    environment = os.environ | {"PYTHONPATH": str(checkout.absolute())}
    found: dict[str, Any] = {}
    # The first process makes the store, and its files are read; the second one is measured.
    for _ in range(2):
        done = subprocess.run(
            command, env=environment, cwd=checkout, check=True, text=True, stdout=subprocess.PIPE
        )
        found = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
