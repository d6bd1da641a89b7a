"""What became of it: engines that were proven and timed, beside the first choice of an advice."""

from typing import Any

from services.cli.advise.expectation import Expectation, Graph, ProvenSpeed
from services.contracts.builds.build_plan import BuildPlan
from services.contracts.hardware.facts import Generation
from services.contracts.model.manifest import ProofOutcome
from services.contracts.registry.registry import Registry
from services.contracts.selection.joint_order import engine_history
from services.contracts.selection.speed_gate import deciding, is_wild, speed_over_fallback

# A first choice that is at most so much slower than the best is right.
_RIGHT = 1.1


class Proofs:
    """The proven and timed engines of a master: build key, and the run that counts."""

    def __init__(self, registry: Registry, master_digest: str) -> None:
        """Read them, with their joint runs."""
        self._registry = registry
        runs = registry.joint_runs(master_digest)
        self._timed = [
            (key, deciding(engine_history(each, key.generation, runs)))
            for each in registry.engines(master_digest)
            if each.proof.outcome is ProofOutcome.PASSED and each.proof.timings
            for key in [each.manifest.key]
        ]

    def speeds(self, graph: Graph) -> list[ProvenSpeed]:
        """Of all that were timed beside the fallback."""
        return [
            ProvenSpeed(graph, Generation.parse(key.generation), key.kind, key.precision, speed)
            for key, timings in self._timed
            if (speed := speed_over_fallback(timings))
        ]

    def outcome(
        self, generation: str, first: Expectation, plan: BuildPlan | None
    ) -> dict[str, Any] | None:
        """The fastest engine of a generation; None where nothing was proven and timed.

        Args:
            generation: of the engines.
            first: what advice says to try first.
            plan: of the generation, by which it is known whether that was tried.

        Returns:
            Its speed over the fallback, None where that was not timed; whether it was timed beside
            other load; how many times slower the first choice is, None where it was not proven;
            and whether that is right, None where it was not tried.
        """
        here = {(k.kind, k.precision): t for k, t in self._timed if k.generation == generation}
        if not here:
            return None
        # Without the fallback by the first shape alone.
        speeds = {what: speed_over_fallback(t) or 1 / t[0].p50_s for what, t in here.items()}
        best = max(speeds, key=lambda what: speeds[what])
        behind = speeds[best] / speeds[first[:2]] if first[:2] in speeds else None
        keys = [each.key for each in plan.planned] if plan else []
        tried = [key.digest() for key in keys if (key.kind, key.precision) == first[:2]]
        is_refused = any(map(self._registry.build_records, tried))
        return {
            "kind": best[0],
            "precision": best[1],
            "speed": speed_over_fallback(here[best]),
            "is_wild": is_wild(here[best]),
            "behind": behind,
            "is_right": behind <= _RIGHT if behind else (False if is_refused else None),
            "num_engines": len(here),
        }
