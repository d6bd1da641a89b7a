"""The order of a master's engines by its joint runs: one pure function over documents.

Each run after the first times the incumbent again. A new engine's time is therefore known
relative to it, and through it relative to all engines of earlier runs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from services.contracts.model.manifest import PublishedEngine, Timing
from services.contracts.model.recipe import Recipe
from services.contracts.selection.joint_run import JointRun
from services.contracts.selection.speed_gate import (
    NOISE,
    deciding,
    is_settled,
    is_wild,
    rejection_reason,
    speed_bounds,
)

# Of engines that are closer to each other it does not matter which one serves.
_MUCH = 0.1


@dataclass(frozen=True, kw_only=True)
class JointOrder:
    """The order of some engines by the runs of one generation.

    Attributes:
        order: digests, best first; empty when not all that were asked for are in it.
        uncovered: digests that no run has timed beside the others.
        decided_by: the newest run that counted; None without any.
        slowness: seconds by digest, as if all had been in one run; of others too.
    """

    order: tuple[str, ...] = ()
    uncovered: frozenset[str] = frozenset()
    decided_by: JointRun | None = None
    slowness: Mapping[str, float] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Which run decided, for people; "" when none did."""
        return self.decided_by.words if self.order and self.decided_by else ""


def joint_order(digests: Iterable[str], generation: str, runs: Sequence[JointRun]) -> JointOrder:
    """Put engines in order.

    Args:
        digests: of the engines that could serve.
        generation: of the device that will run them; runs elsewhere do not count.
        runs: of their master, oldest first.
    """
    wanted = frozenset(digests)
    seen = [run for run in runs if run.device.generation == generation and run.digests & wanted]
    chain = _Chain(wanted)
    for run in seen:
        chain.add(run)
    uncovered = wanted - chain.slowness.keys() - chain.left_out
    return JointOrder(
        order=() if uncovered or not seen else chain.order(),
        uncovered=uncovered,
        decided_by=seen[-1] if seen else None,
        slowness=chain.slowness,
    )


def engine_history(
    engine: PublishedEngine, generation: str, runs: Sequence[JointRun]
) -> list[Sequence[Timing]]:
    """What an engine took in its proof and in each run that has it, oldest first.

    Args:
        engine: with its newest proof.
        generation: of the device that will run it.
        runs: of its master, oldest first.
    """
    here = [run for run in runs if run.device.generation == generation]
    seen = [run for run in here if engine.digest in run.digests]
    # It may have been proven again since, on a device that has changed.
    num_before = sum(run.created_at < engine.proof.created_at for run in seen)
    beside = [run.timings(engine.digest) for run in seen]
    return [*beside[:num_before], engine.proof.timings, *beside[num_before:]]


def deciding_timings(engine: PublishedEngine, runs: Sequence[JointRun]) -> Sequence[Timing]:
    """What an engine took in the run that counts, on devices of its own generation."""
    return deciding(engine_history(engine, engine.manifest.key.generation, runs))


def unsettled(
    engines: Iterable[PublishedEngine], recipe: Recipe, generation: str, runs: Sequence[JointRun]
) -> frozenset[str]:
    """Digests of those that are to be timed again: beside the fallback, or beside who leads.

    Args:
        engines: that could serve.
        recipe: the fallback counts when it asks them to beat it.
        generation: of the device that will run them.
        runs: of their master, oldest first.
    """
    histories = {each.digest: engine_history(each, generation, runs) for each in engines}
    beside_fallback = frozenset(
        digest
        for digest, history in histories.items()
        if recipe.must_beat_fallback and not is_settled(history)
    )
    fitting = [
        each
        for each, timings in histories.items()
        if not rejection_reason(deciding(timings), recipe)
    ]
    here = [run for run in runs if run.device.generation == generation]
    return beside_fallback | _rivals(joint_order(fitting, generation, here).order, here)


def _rivals(order: Sequence[str], runs: Sequence[JointRun]) -> frozenset[str]:
    """Engines that may be much faster than the first by each run of both."""
    beside = {
        digest: [run for run in runs if {order[0], digest} <= run.digests] for digest in order[1:]
    }
    return frozenset(
        digest
        for digest, seen in beside.items()
        if seen and all(_may_be_faster(run, digest, order[0]) for run in seen)
    )


def _may_be_faster(run: JointRun, one: str, other: str) -> bool:
    mine, theirs = (speed_bounds(run.timings(digest)) for digest in (one, other))
    return mine is not None and theirs is not None and mine.high > (1 + _MUCH) * theirs.low


class _Chain:
    """Runs one after another, with what they have in common.

    Attributes:
        slowness: seconds by digest, as if all had been in the first run.
        left_out: engines that were too slow, or too many, to be timed again.
    """

    def __init__(self, wanted: frozenset[str]) -> None:
        self._wanted = wanted
        self._best = ""
        # Those that some run has figures of which are not wild.
        self._measured: set[str] = set()
        self.slowness: dict[str, float] = {}
        self.left_out: set[str] = set()

    def add(self, run: JointRun) -> None:
        """Take a run's figures, and find out whether it has another best one."""
        found = {digest: run.mean_s(digest) for digest in run.digests}
        common = found.keys() & self.slowness.keys()
        if common:
            anchor = run.incumbent if run.incumbent in common else min(common)
            scale = self.slowness[anchor] / found[anchor]
        else:
            # Nothing to be compared with: what came before is of another time.
            self.slowness = {}
            self.left_out = set()
            self._best = ""
            scale = 1.0
        self._measured |= {digest for digest in found if not is_wild(run.timings(digest))}
        self.slowness |= {digest: mean_s * scale for digest, mean_s in found.items()}
        self.left_out = (self.left_out | run.left_out.keys()) - self.slowness.keys()
        self._choose_best(run)

    def order(self) -> tuple[str, ...]:
        """The wanted ones, best first; those of wild figures alone, then those left out, last."""
        known = (self._wanted & self.slowness.keys()) - {self._best}
        first = (self._best,) if self._best in self._wanted else ()
        ranked = sorted(known, key=self._place)
        return (*first, *ranked, *sorted(self._wanted & self.left_out))

    def _place(self, digest: str) -> tuple[bool, float, str]:
        return (digest not in self._measured, self.slowness[digest], digest)

    def _choose_best(self, run: JointRun) -> None:
        """Two runs of one engine differ by the noise: only more makes another one best."""
        fastest = min(self._wanted & run.digests, key=self._place)
        wanted_s = (1 - NOISE) * self.slowness.get(self._best, math.inf)
        if self._best not in self._wanted or (
            self.slowness[fastest] < wanted_s and not overlaps(run, fastest, self._best)
        ):
            self._best = fastest


def overlaps(run: JointRun, one: str, other: str) -> bool:
    """Whether a run has both of two engines, and their intervals leave open which is faster.

    Args:
        run: whatever its age; older ones have no intervals, and leave nothing open.
        one: digest of an engine.
        other: and of another.
    """
    if not {one, other} <= run.digests:
        return False
    mine, theirs = (speed_bounds(run.timings(digest)) for digest in (one, other))
    return bool(mine and theirs and mine.low <= theirs.high and theirs.low <= mine.high)
