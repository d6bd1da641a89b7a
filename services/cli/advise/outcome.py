"""What became of it: engines that were proven and timed, beside the first choice of an advice."""

from collections.abc import Sequence
from typing import Any

from services.cli.advise.expectation import Expectation, Graph, ProvenSpeed
from services.contracts.builds.build_plan import BuildPlan
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ProofOutcome, PublishedEngine, Timing
from services.contracts.registry.registry import Registry
from services.contracts.selection.joint_order import engine_history
from services.contracts.selection.selection import fastest_first, joint_order_of
from services.contracts.selection.speed_gate import deciding, is_wild, speed_over_fallback

# A first choice that is at most so much slower than the best is right.
_RIGHT = 1.1


class Proofs:
    """The proven and timed engines of a master."""

    def __init__(self, registry: Registry, master_digest: str) -> None:
        """Read them, with their joint runs."""
        self._registry = registry
        self._runs = registry.joint_runs(master_digest)
        engines = registry.engines(master_digest)
        passed = [each for each in engines if each.proof.outcome is ProofOutcome.PASSED]
        self._timed = [each for each in passed if each.proof.timings]

    def speeds(self, graph: Graph) -> list[ProvenSpeed]:
        """Of all that were timed beside the fallback."""
        return [
            ProvenSpeed(graph, Generation.parse(each.manifest.key.generation), *_what(each), speed)
            for each in self._timed
            if (speed := speed_over_fallback(self._timings(each)))
        ]

    def outcome(
        self, generation: str, first: Expectation, plan: BuildPlan | None
    ) -> dict[str, Any] | None:
        """The best engine of a generation; None where nothing was proven and timed.

        Args:
            generation: of the engines.
            first: what advice says to try first.
            plan: of the generation, by which it is known whether that was tried.

        Returns:
            Its speed over the fallback, None where that was not timed; whether it was timed beside
            other load; how many times slower the first choice is, None where it was not proven;
            and whether that is right, None where it was not tried.
        """
        here = [each for each in self._timed if each.manifest.key.generation == generation]
        if not here:
            return None
        best = fastest_first(here, joint_order_of(here, generation, self._runs))[0]
        behind = [self._slower(each, best) for each in here if _what(each) == first[:2]]
        keys = [each.key for each in plan.planned] if plan else []
        keys = [key for key in keys if (key.kind, key.precision) == first[:2]]
        is_tried = any(self._registry.build_records(key.digest()) for key in keys)
        kind, precision = _what(best)
        return {
            "kind": kind,
            "precision": precision,
            "speed": speed_over_fallback(self._timings(best)),
            "is_wild": is_wild(self._timings(best)),
            "behind": behind[0] if behind else None,
            "is_right": behind[0] <= _RIGHT if behind else (False if is_tried else None),
            "num_engines": len(here),
        }

    def _timings(self, engine: PublishedEngine) -> Sequence[Timing]:
        return deciding(engine_history(engine, engine.manifest.key.generation, self._runs))

    def _slower(self, one: PublishedEngine, best: PublishedEngine) -> float:
        """How many times, by the newest run that has both; else by their proofs' first shapes."""
        both = {one.digest, best.digest}
        if run := next((run for run in reversed(self._runs) if both <= run.digests), None):
            return run.mean_s(one.digest) / run.mean_s(best.digest)
        return one.proof.timings[0].p50_s / best.proof.timings[0].p50_s


def _what(engine: PublishedEngine) -> tuple[EngineKind, Precision]:
    return engine.manifest.key.kind, engine.manifest.key.precision
