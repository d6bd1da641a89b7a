"""The events of models: publications, and what people asked: loads, weights, removals. Pure."""

from collections.abc import Iterator, Mapping
from itertools import chain

from services.contracts.builds.build_plan import RebuildRequest
from services.contracts.events import Event, EventKind
from services.contracts.external.external_model import ExternalModel
from services.contracts.model.manifest import ModelRemoval, ModelVersion
from services.contracts.registry.serving import ServingChange
from services.contracts.registry.weights import VersionWeights
from services.controller.build.build_view import FleetView
from services.controller.events.event_state import EventState

_UNNAMED = "somebody"
_AnyVersion = ModelVersion | ExternalModel


def model_events(state: EventState, view: FleetView) -> Iterator[Event]:
    """Versions that were published or removed; loads, weights and rebuilds that were asked for."""
    for name, removals in view.removals.items():
        unknown = (each for each in removals if not state.is_removed(name, each.version))
        yield from (_removed(view, name, removal) for removal in unknown)
    newest_ones = (each for each in view.versions if view.is_newest(each))
    versions: Iterator[_AnyVersion] = chain(newest_ones, view.externals)
    for version in versions:
        newest = state.newest(version.name)
        name = version.name
        if newest is None or newest.version < version.version:
            yield _published(state, version, newest)
        loads = state.unrecorded("load", name, view.serving_changes.get(name, ()))
        yield from (_loaded(version, load, number) for number, load in loads)
        weights = state.unrecorded("weights", name, view.weight_changes.get(name, ()))
        yield from (_weighted(version, change, number) for number, change in weights)
        rebuilds = state.unrecorded("rebuild", name, view.requests.get(name, ()))
        yield from (_rebuild(request, number) for number, request in rebuilds)


def _published(state: EventState, version: _AnyVersion, newest: Event | None) -> Event:
    if isinstance(version, ExternalModel):
        kind = EventKind.MODEL_PUBLISHED
        return Event(kind=kind, model=version.name, version=version.version, why=version.words)
    # The same master that is added once more after its removal is no change of a recipe.
    is_same_master = (
        newest is not None
        and newest.key == version.master.digest
        and not state.is_removed(version.name, newest.version)
    )
    verdict = version.fallback_verdict
    traffic = version.traffic
    calibrated = f", calibrated with {traffic.num_samples} samples of traffic" if traffic else ""
    refuted = f"; {verdict.words}" if verdict and (verdict.refuted or verdict.refused) else ""
    return Event(
        kind=EventKind.RECIPE_CHANGED if is_same_master else EventKind.MODEL_PUBLISHED,
        model=version.name,
        version=version.version,
        key=version.master.digest,
        why=f"from {version.source}{calibrated}{refuted}",
    )


def _loaded(newest: _AnyVersion, change: ServingChange, number: int) -> Event:
    undo = f"no version is to be served; undo it with: smelt models load {newest.name}"
    return Event(
        actor=change.who or _UNNAMED,
        kind=EventKind.MODEL_LOADED if change.is_served else EventKind.MODEL_UNLOADED,
        model=newest.name,
        version=newest.version,
        mark=str(number),
        why="to be served again" if change.is_served else undo,
    )


def _weighted(newest: _AnyVersion, change: VersionWeights, number: int) -> Event:
    weights = {version: weight for version, weight in change.weights.items() if weight > 0}
    cleared = "cleared: the newest version that is ready gets all requests that name none"
    return Event(
        actor=change.who or _UNNAMED,
        kind=EventKind.WEIGHTS_CHANGED,
        model=newest.name,
        version=newest.version,
        # With the versions, as the end of what they serve depends on them.
        mark=" ".join(map(str, (number, *sorted(weights)))),
        why=_shared_words(weights) if weights else cleared,
    )


def _rebuild(request: RebuildRequest, number: int) -> Event:
    counts = f"{len(request.disregarded)} failed, {len(request.reprove)} published engines"
    return Event(
        actor=request.who,
        kind=EventKind.REBUILD_REQUESTED,
        model=request.model,
        version=request.version,
        generation=request.generation,
        mark=str(number),
        why=request.why or counts,
    )


def _removed(view: FleetView, model: str, removal: ModelRemoval) -> Event:
    return Event(
        actor=removal.who or _UNNAMED,
        kind=EventKind.MODEL_REMOVED,
        model=model,
        version=removal.version,
        mark=removal.created_at,
        why=_served_instead(view, model),
    )


def _served_instead(view: FleetView, model: str) -> str:
    """What is to be served of a model now."""
    known: Iterator[_AnyVersion] = chain(view.versions, view.externals)
    newest = next((each.version for each in known if each.name == model), None)
    loads = view.serving_changes.get(model, ())
    changes = view.weight_changes.get(model, ())
    if newest is None:
        return "no version is left to serve"
    if loads and not loads[-1].is_served:
        return f"version {newest} is the newest left; the model is unloaded"
    removed = {removal.version for removal in view.removals.get(model, ())}
    weights = changes[-1].weights if changes else {}
    left = {each: w for each, w in weights.items() if w > 0 and each not in removed}
    return _shared_words(left) if left else f"version {newest} is to be served"


def _shared_words(weights: Mapping[int, float]) -> str:
    shares = " ".join(f"v{version}={weight:g}" for version, weight in sorted(weights.items()))
    return f"requests that name no version are shared: {shares}"
