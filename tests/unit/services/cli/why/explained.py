"""A store with engines in each state, and commands that explain them."""

import asyncio
import json
import re
from typing import Any

from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.builds.build_plan import SkippedKey
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import SideTiming, Timing
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.selection.proof_checks import PowerCheck
from services.contracts.terms import proof_terms
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_loop import BuildLoop, BuildPace
from services.controller.build.key_status import RetryPolicy
from tests.unit.services.controller import build_world as world

# Keys as the recipe of the model asks for them: else selection would pass them over.
TERMS = proof_terms(Recipe(), world.key().precision, None)
KINDS = (EngineKind.INDUCTOR, EngineKind.ONNXRUNTIME, EngineKind.OPENVINO)
KEYS = tuple(world.key(kind, proof_terms=TERMS) for kind in KINDS)
INDUCTOR, ORT, OPENVINO = KEYS
TIMING = Timing(bucket="b", sizes={}, p50_s=0.002, p95_s=1, throughput=1, eager_p50_s=0.004)
POWER = PowerCheck(output="y", refused=("a",), blind=("2 % off",), accepted=("2 % off",))
SKIPPED = SkippedKey(kind="tensorrt", precision="fp32", reason="tensorrt needs a GPU")


CODE_WORD = re.compile(r"\b[a-z]+_[a-z_]+\b")


def side(p50_s: float) -> SideTiming:
    return SideTiming(p50_s=p50_s, p95_s=p50_s, throughput=1.0, peak_memory_bytes=1)


class Nodes:
    def pools(self) -> list[Any]:
        return [world.pool()]


def smelt(*words: str) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def smelt_json(*words: str) -> Any:
    return json.loads(smelt(*words, "--json"))


def one_pass(registry: Registry) -> world.InstantWorker:
    """What a controller would launch now."""
    worker = world.InstantWorker(registry, world.plan(KEYS))
    pace = BuildPace(retry=RetryPolicy(first_delay_s=0.0))
    asyncio.run(BuildLoop(registry, Nodes(), worker, FleetState("", 0), pace=pace).sync())
    return worker
