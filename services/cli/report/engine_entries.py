"""The engines of a generation: published or planned, with every attempt and what they took."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from services.contracts.builds.build_record import BuildRecord
from services.contracts.hardware.kinds import Precision
from services.contracts.model.manifest import Proof, PublishedEngine, SideTiming, Timing
from services.contracts.registry.registry import Registry
from services.contracts.selection.joint_order import deciding_timings
from services.contracts.selection.joint_run import JointRun
from services.contracts.selection.speed_gate import is_wild
from services.contracts.text.words import readable_time


class EngineEntry(NamedTuple):
    """An engine that is published or planned, and every attempt to build it."""

    name: str
    precision: Precision
    engine: PublishedEngine | None
    records: Sequence[BuildRecord]

    @property
    def proof(self) -> Proof | None:
        """The newest of the engine, else the one that the last attempt failed."""
        failed = [each.proof for each in self.records if each.proof]
        return self.engine.proof if self.engine else failed[-1] if failed else None


class TimedSide(NamedTuple):
    """Eager, the fallback or an engine, timed at each shape.

    Attributes:
        name: for people; with a `?` where `is_wild`.
        source: which run timed it.
        shapes: each, with the side's figures.
        kernels: that a call runs.
        is_wild: timed on a machine that was too busy to say how fast it is.
    """

    name: str
    source: str
    shapes: Sequence[tuple[Timing, Timing | SideTiming]]
    kernels: str
    is_wild: bool


def engine_entries(
    registry: Registry, engines: Sequence[PublishedEngine], case: dict[str, Any] | None
) -> list[EngineEntry]:
    """Those of one generation, the best first.

    Args:
        registry: of the store.
        engines: for the generation.
        case: as `smelt why` ranks them; None where nothing is planned.
    """
    planned = case["planned"] if case else []
    words = {each["digest"]: (each["kind"], each["precision"]) for each in planned}
    published = {each.digest: each for each in engines}
    keys = (each.manifest.key for each in engines)
    words |= {key.digest(): (key.kind.value, key.precision.value) for key in keys}
    entries: dict[str, EngineEntry] = {}
    for digest, (kind, precision) in words.items():
        name = f"{kind} {precision}"
        # Another one is for another device of the generation, or of another toolchain.
        name += f" {digest[:12]}" if name in entries else ""
        records = registry.build_records(digest)
        entries[name] = EngineEntry(name, Precision(precision), published.get(digest), records)
    return list(entries.values())


def timed_sides(entries: Sequence[EngineEntry], runs: Sequence[JointRun]) -> list[TimedSide]:
    """Eager and the fallback as they were timed beside the first engine, and each engine."""
    sides: list[TimedSide] = []
    for name, _, engine, _ in entries:
        if engine is None:
            continue
        timings = deciding_timings(engine, runs)
        mine = (each for each in reversed(runs) if engine.digest in each.digests)
        run = next((each for each in mine if each.timings(engine.digest) == timings), None)
        source = f"joint run of {made(run)}" if run else f"proof of {made(engine.proof)}"
        doubt = is_wild(timings)
        mark = " ?" * doubt
        kernels = {side: f"{num} by {by}" for side, (num, by) in engine.proof.kernels.items()}
        if not sides:
            eager = [(each, each.eager) for each in timings if each.eager]
            fallback = [(each, each.fallback) for each in timings if each.fallback]
            both = {"eager": eager, "fallback": fallback}
            sides += [
                TimedSide(key + mark, source, both[key], kernels.get(key, "-"), doubt)
                for key in both
            ]
        shapes = [(each, each) for each in timings]
        sides.append(TimedSide(name + mark, source, shapes, kernels.get("engine", "-"), doubt))
    return [side for side in sides if side.shapes]


def made(record: JointRun | Proof) -> str:
    """When and where."""
    where = record.device.name if record.device else "no device"
    return f"{readable_time(record.created_at)} on {where}"
