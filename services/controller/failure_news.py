"""What does not go on: engines given up, plans not made, replicas without a node. Pure."""

import hashlib
from collections.abc import Iterable, Iterator

from services.contracts.events import Event, EventKind, TrailFold
from services.controller.build_order import Quarantined
from services.controller.build_policy import Unplanned
from services.pb import fleet_v1_pb2 as fleet

_SHORT = 12


def quarantine_news(fold: TrailFold, quarantined: Iterable[Quarantined]) -> Iterator[Event]:
    """What was given up."""
    for each in quarantined:
        if each.mark not in fold.quarantined:
            yield Event(
                at="",
                kind=EventKind.QUARANTINED,
                model=each.model,
                version=each.version,
                generation=each.generation,
                key=each.key,
                mark=each.mark,
                why=f"{each.what}: {each.reason}; let out by: smelt rebuild {each.model}",
            )


def unplanned_news(fold: TrailFold, unplanned: Iterable[Unplanned]) -> Iterator[Event]:
    """Tasks that made no plan, with their last words."""
    for each in unplanned:
        mark = f"{each.end.name} ended"
        if mark not in fold.tasks:
            yield Event(
                at="",
                kind=EventKind.BUILD_FAILED,
                model=each.model,
                version=each.version,
                generation=each.generation,
                mark=mark,
                why=f"no plan was made (attempt {each.attempt} of {each.max_attempts}): "
                f"{each.end.detail}",
            )


def unplaced_news(fold: TrailFold, snapshot: fleet.FleetSnapshot) -> Iterator[Event]:
    """Versions of which replicas are placed on no node, once for each reason."""
    for model in snapshot.models:
        reason = hashlib.sha256(model.unplaced.encode()).hexdigest()[:_SHORT]
        mark = f"{model.name}/{model.version} unplaced {reason}"
        if model.unplaced and mark not in fold.tasks:
            yield Event(
                at="",
                kind=EventKind.REPLICAS_UNPLACED,
                model=model.name,
                version=model.version,
                mark=mark,
                why=model.unplaced,
            )
