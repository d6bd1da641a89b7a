"""A gateway and two replicas in processes of their own; one of the replicas is restarted."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from services.cli.fleet.child_process import ChildProcess, ProcessSpec
from services.contracts.model.recipe import Bucket, DimRange
from services.controller.api.fleet_state import FleetState
from services.pb import fleet_v1_pb2 as fleet
from tests.faults.fuzz.world import FUZZED_RECIPE, controller_service
from tests.integration.replica.published import Shelf

MAX_ROWS, MAX_LENGTH = 8, 8192
_START_S = 60.0
_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SoakFleet:
    """What is soaked.

    Attributes:
        address: of the gateway.
        steady: processes that live to the end, by role: their memory is looked at.
        restarted: the replica that is stopped and killed in turn.
    """

    address: str
    steady: Mapping[str, ChildProcess]
    restarted: ChildProcess

    def memory_mib(self) -> dict[str, float]:
        """Resident memory of the steady processes now."""
        return {
            name: psutil.Process(process.pid).memory_info().rss / _MIB
            for name, process in self.steady.items()
        }

    async def restart(self, *, is_killed: bool) -> None:
        """Have the second replica stop as it should, or die, and start it again."""
        if is_killed:
            os.kill(self.restarted.pid, signal.SIGKILL)
            await asyncio.to_thread(self.restarted.wait)
        else:
            await asyncio.to_thread(self.restarted.stop)
        await asyncio.to_thread(self.restarted.start)


@asynccontextmanager
async def soak_fleet(folder: Path) -> AsyncIterator[SoakFleet]:
    """Everything started; the model answers requests of up to 1 MB."""
    dims = {
        "batch": DimRange(min=1, opt=4, max=MAX_ROWS),
        "sequence": DimRange(min=1, opt=64, max=MAX_LENGTH),
    }
    shelf = Shelf(folder, FUZZED_RECIPE.model_copy(update={"buckets": (Bucket(dims=dims),)}))
    model = shelf.publish_model(max_queue=256)
    shelf.publish_engine()
    state = FleetState(shelf.store_url, os.getpid())
    served = {"name": model.name, "version": model.version}
    state.set_model(fleet.ServedModel(**served, model_version_json=model.canonical_json()))
    async with AsyncExitStack() as stack:
        controller = await controller_service(stack, shelf.registry, state, {})

        async def started(name: str, spec: ProcessSpec) -> tuple[ChildProcess, dict[str, Any]]:
            process = ChildProcess(spec, folder / f"{name}.log", _START_S)
            said = await asyncio.to_thread(process.start)
            stack.callback(process.stop)
            return process, said

        replicas = [
            (await started(f"replica-{number}", _replica_spec(folder, controller)))[0]
            for number in range(2)
        ]
        gateway, said = await started("gateway", _gateway_spec(controller))
        yield SoakFleet(
            address=f"127.0.0.1:{said['grpc_port']}",
            steady={"gateway": gateway, "replica": replicas[0]},
            restarted=replicas[1],
        )


def _replica_spec(folder: Path, controller: str) -> ProcessSpec:
    settings = {
        "store_url": folder / "store",
        "cache_dir": folder / "cache",
        "model": "toy",
        "controller_address": controller,
        "socket_dir": folder / "s",
        "num_threads": 1,
    }
    return ProcessSpec(
        module="tests.replica_process", env_prefix="SMELT_REPLICA_", settings=settings
    )


def _gateway_spec(controller: str) -> ProcessSpec:
    settings = {"controller": controller, "grpc_port": 0, "metrics_port": 0}
    return ProcessSpec(module="services.gateway", env_prefix="SMELT_GATEWAY_", settings=settings)
