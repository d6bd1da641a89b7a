"""What became of it: engines that were proven and timed, beside the first choice of an advice."""

from typing import Any

from services.cli.advise.expectation import Expectation, Graph, ProvenSpeed
from services.contracts.builds.build_plan import BuildPlan
from services.contracts.hardware.facts import Generation
from services.contracts.model.manifest import ProofOutcome
from services.contracts.registry.registry import Registry
from services.contracts.selection.joint_order import deciding_timings
from services.contracts.selection.selection import joint_order_of
from services.contracts.selection.speed_gate import (
    is_wild,
    speed_bounds,
    speed_over_fallback,
)

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
        found = []
        for each in self._timed:
            key = each.manifest.key
            timings = deciding_timings(each, self._runs)
            if speed := speed_over_fallback(timings):
                bounds = speed_bounds(timings)
                doubt = bounds.high / bounds.low if bounds else 1.0
                where = Generation.parse(key.generation)
                found.append(ProvenSpeed(graph, where, key.kind, key.precision, speed, doubt))
        return found

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
            and whether that is right, None where it was not tried, or nothing beside it.
        """
        here = {
            (each.manifest.key.kind, each.manifest.key.precision): each
            for each in self._timed
            if each.manifest.key.generation == generation
        }
        if not here:
            return None
        seconds = joint_order_of(here.values(), generation, self._runs).slowness
        if not all(each.digest in seconds for each in here.values()):
            # Runs of different hours: by the first shape of each proof.
            seconds = {each.digest: each.proof.timings[0].p50_s for each in here.values()}
        best = min(here, key=lambda what: seconds[here[what].digest])
        chosen = here.get(first[:2])
        behind = seconds[chosen.digest] / seconds[here[best].digest] if chosen else None
        keys = [each.key for each in plan.planned] if plan else []
        tried = [key.digest() for key in keys if (key.kind, key.precision) == first[:2]]
        is_refused = any(map(self._registry.build_records, tried))
        # The only one that was proven is no choice that could have been wrong.
        is_right = behind <= _RIGHT if behind and len(here) > 1 else None
        timings = deciding_timings(here[best], self._runs)
        return {
            "kind": best[0],
            "precision": best[1],
            "speed": speed_over_fallback(timings),
            "is_wild": is_wild(timings),
            "behind": behind,
            "is_right": False if is_refused and not behind else is_right,
            "num_engines": len(here),
        }
