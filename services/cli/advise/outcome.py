"""What became of it: engines that were proven and timed, beside the first choice of an advice."""

from collections.abc import Sequence
from typing import NamedTuple

from services.cli.advise.expectation import Expectation, Graph, ProvenSpeed
from services.contracts.builds.build_plan import BuildPlan
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ProofOutcome, PublishedEngine, Timing
from services.contracts.registry.registry import Registry
from services.contracts.selection.joint_order import engine_history
from services.contracts.selection.joint_run import JointRun
from services.contracts.selection.selection import fastest_first, joint_order_of
from services.contracts.selection.speed_gate import deciding, is_wild, speed_over_fallback

# A first choice that is at most so much slower than the best is right.
_RIGHT = 1.1


class Outcome(NamedTuple):
    """The best proven engine of a generation, and how the first choice did.

    Attributes:
        speed: of the best, times the fallback; None where that was not timed.
        is_wild: it was timed beside other load, so that the figure says little.
        behind: how many times slower the first choice is; None where it was not proven.
        is_right: None where the first choice was not tried yet.
        num_engines: proven and timed.
    """

    kind: EngineKind
    precision: Precision
    speed: float | None
    is_wild: bool
    behind: float | None
    is_right: bool | None
    num_engines: int


class Proofs:
    """The proven and timed engines of a master."""

    def __init__(self, registry: Registry, master_digest: str) -> None:
        """Read them, with their joint runs."""
        self._registry = registry
        self._runs = registry.joint_runs(master_digest)
        self._timed = [
            engine
            for engine in registry.engines(master_digest)
            if engine.proof.outcome is ProofOutcome.PASSED and engine.proof.timings
        ]

    def speeds(self, graph: Graph) -> list[ProvenSpeed]:
        """Of all that were timed beside the fallback."""
        return [
            ProvenSpeed(graph, Generation.parse(each.manifest.key.generation), *_what(each), speed)
            for each in self._timed
            if (speed := speed_over_fallback(self._timings(each)))
        ]

    def outcome(
        self, generation: str, first: Expectation, plan: BuildPlan | None
    ) -> Outcome | None:
        """The outcome on a generation; None where nothing was proven and timed.

        Args:
            generation: of the engines.
            first: what advice says to try first.
            plan: of the generation, by which it is known whether that was tried.
        """
        here = [e for e in self._timed if e.manifest.key.generation == generation]
        if not here:
            return None
        best = fastest_first(here, joint_order_of(here, generation, self._runs))[0]
        chosen = next((each for each in here if _what(each) == first[:2]), None)
        behind = _times_slower(chosen, best, self._runs) if chosen else None
        planned = [p.key for p in plan.planned] if plan else []
        keys = [key.digest() for key in planned if (key.kind, key.precision) == first[:2]]
        is_tried = any(map(self._registry.build_records, keys))
        timings = self._timings(best)
        return Outcome(
            *_what(best),
            speed=speed_over_fallback(timings),
            is_wild=is_wild(timings),
            behind=behind,
            is_right=behind <= _RIGHT if behind else (False if is_tried else None),
            num_engines=len(here),
        )

    def _timings(self, engine: PublishedEngine) -> Sequence[Timing]:
        return deciding(engine_history(engine, engine.manifest.key.generation, self._runs))


def _what(engine: PublishedEngine) -> tuple[EngineKind, Precision]:
    return engine.manifest.key.kind, engine.manifest.key.precision


def _times_slower(one: PublishedEngine, best: PublishedEngine, runs: list[JointRun]) -> float:
    """By the newest run that has both; else by what each proof found at their first shape."""
    both = {one.digest, best.digest}
    if run := next((run for run in reversed(runs) if both <= run.digests), None):
        return run.mean_s(one.digest) / run.mean_s(best.digest)
    return one.proof.timings[0].p50_s / best.proof.timings[0].p50_s
