"""What people asked of published models: loads and unloads, weights, and removals. Pure."""

from collections.abc import Iterator

from services.contracts.events import Event, EventKind, TrailFold
from services.contracts.manifest import ModelVersion
from services.controller.build_view import FleetView

_UNNAMED = "somebody"


def load_news(fold: TrailFold, view: FleetView, newest: ModelVersion) -> Iterator[Event]:
    """Loads and unloads of one model."""
    changes = view.serving_changes.get(newest.name, ())
    told = fold.num_serving_changes.get(newest.name, 0)
    for number, change in enumerate(changes[told:], start=told + 1):
        yield Event(
            at="",
            actor=change.who or _UNNAMED,
            kind=EventKind.MODEL_LOADED if change.is_served else EventKind.MODEL_UNLOADED,
            model=newest.name,
            version=newest.version,
            mark=str(number),
            why="to be served again"
            if change.is_served
            else f"no version is to be served; undo it with: smelt models load {newest.name}",
        )


def weight_news(fold: TrailFold, view: FleetView, newest: ModelVersion) -> Iterator[Event]:
    """How one model's versions came to share the requests that name none."""
    changes = view.weight_changes.get(newest.name, ())
    told = fold.num_weight_changes.get(newest.name, 0)
    for number, change in enumerate(changes[told:], start=told + 1):
        weights = {version: weight for version, weight in change.weights.items() if weight > 0}
        words = _weight_words(weights)
        yield Event(
            at="",
            actor=change.who or _UNNAMED,
            kind=EventKind.WEIGHTS_CHANGED,
            model=newest.name,
            version=newest.version,
            # With the versions, which the fold has to know.
            mark=" ".join(map(str, (number, *sorted(weights)))),
            why=f"requests that name no version are shared: {words}"
            if weights
            else "cleared: the newest version that is ready gets all requests that name none",
        )


def removal_news(fold: TrailFold, view: FleetView) -> Iterator[Event]:
    """Versions that were removed, and what is to be served instead."""
    for name, removals in view.removals.items():
        for removal in removals:
            if removal.version not in fold.removed.get(name, ()):
                yield Event(
                    at="",
                    actor=removal.who or _UNNAMED,
                    kind=EventKind.MODEL_REMOVED,
                    model=name,
                    version=removal.version,
                    mark=removal.created_at,
                    why=_instead(view, name),
                )


def _instead(view: FleetView, model: str) -> str:
    """What is to be served of a model now."""
    newest = next((known.version for known in view.versions if known.name == model), None)
    loads, changes = view.serving_changes.get(model, ()), view.weight_changes.get(model, ())
    if newest is None:
        return "no version is left to serve"
    if loads and not loads[-1].is_served:
        return f"version {newest} is the newest left; the model is unloaded"
    removed = {removal.version for removal in view.removals.get(model, ())}
    weights = changes[-1].weights if changes else {}
    left = {each: w for each, w in weights.items() if w > 0 and each not in removed}
    if left:
        return f"requests that name no version are shared: {_weight_words(left)}"
    return f"version {newest} is to be served"


def _weight_words(weights: dict[int, float]) -> str:
    return " ".join(f"v{version}={weight:g}" for version, weight in sorted(weights.items()))
