"""What the event trail amounts to, and what is news to it. Pure.

Everything that was told can be told from the events alone, so that a controller that starts
again neither repeats an event nor loses one: news is what is seen now, less the fold.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from services.contracts.events import Event, EventKind, EventPosition, TrailFold

FALLBACK = "fallback"
_MAX_TASKS = 100
_RECORD_MARK = "record "
_SERVING = (EventKind.FALLBACK_SERVING, EventKind.ENGINE_SERVING, EventKind.SERVING_ENDED)
_CHANGES = (
    EventKind.GENERATION_APPEARED, EventKind.GENERATION_GONE, EventKind.TOOLCHAIN_CHANGED,
    EventKind.MODEL_PUBLISHED, EventKind.RECIPE_CHANGED, EventKind.REBUILD_REQUESTED,
    EventKind.MODEL_LOADED, EventKind.MODEL_UNLOADED, EventKind.MODEL_REMOVED,
    EventKind.WEIGHTS_CHANGED,
)  # fmt: skip


def fold_event(fold: TrailFold, event: Event, position: EventPosition) -> TrailFold:
    """The fold after one more event."""
    return fold.model_copy(update={"position": position} | _changes(fold, event))


def record_mark(number: int) -> str:
    """The mark of what a build record told, by its number from 1."""
    return f"{_RECORD_MARK}{number}"


def waiting_mark(task: str) -> str:
    """The mark of what told that a build task waits."""
    return f"{task} waits"


def place(model: str, version: int, generation: str) -> str:
    """The key of `TrailFold.serving`."""
    return f"{model}/{version}/{generation}"


def changed_at(fold: TrailFold, event: Event) -> str:
    """When that changed which led to an event; "" when nothing has, or it is a change itself."""
    if event.kind in _CHANGES:
        return ""
    subjects = [event.generation, event.model]
    if event.kind in _SERVING:
        subjects.append(_load_of(event.model))
    # What serves follows from a rebuild only if that had it proven.
    rebuild = _rebuild_of(event.model)
    is_proven_since = fold.engines.get(event.key, "") > fold.changed_at.get(rebuild, "")
    if event.kind not in _SERVING or is_proven_since:
        subjects.append(rebuild)
    return max((fold.changed_at.get(subject, "") for subject in subjects), default="")


def _changes(fold: TrailFold, event: Event) -> dict[str, Any]:
    match event.kind:
        case EventKind.GENERATION_APPEARED | EventKind.TOOLCHAIN_CHANGED:
            return {
                "node_classes": fold.node_classes | {event.generation: event.mark},
                "changed_at": fold.changed_at | {event.generation: event.at},
            }
        case EventKind.GENERATION_GONE:
            return _without_generation(fold, event.generation)
        case EventKind.MODEL_PUBLISHED | EventKind.RECIPE_CHANGED:
            return {
                "versions": fold.versions | {event.model: event.version},
                "masters": fold.masters | {event.model: event.key},
                "changed_at": fold.changed_at | {event.model: event.at},
                "serving": _without(fold.serving, _old_places(fold, fold.serving, event)),
                "joint_runs": _without(fold.joint_runs, _old_places(fold, fold.joint_runs, event)),
            }
        case EventKind.REBUILD_REQUESTED:
            return {
                "num_rebuilds": fold.num_rebuilds | {event.model: int(event.mark)},
                "changed_at": fold.changed_at | {_rebuild_of(event.model): event.at},
                "quarantined": _without(fold.quarantined, _let_out(fold, event)),
            }
        case EventKind.FALLBACK_SERVING | EventKind.ENGINE_SERVING:
            where = place(event.model, event.version, event.generation)
            return {"serving": fold.serving | {where: event.key or FALLBACK}}
        case EventKind.SERVING_ENDED:
            where = place(event.model, event.version, event.generation)
            return {"serving": _without(fold.serving, (where,))}
        case EventKind.ENGINES_COMPARED:
            where = place(event.model, event.version, event.generation)
            return {"joint_runs": fold.joint_runs | {where: event.mark}}
        case _:
            return _asked_changes(fold, event)


def _asked_changes(fold: TrailFold, event: Event) -> dict[str, Any]:
    match event.kind:
        case EventKind.MODEL_LOADED | EventKind.MODEL_UNLOADED:
            return _load_changes(fold, event)
        case EventKind.WEIGHTS_CHANGED:
            return _weight_changes(fold, event)
        case EventKind.MODEL_REMOVED:
            return _removal_changes(fold, event)
        case _:
            return _build_changes(fold, event)


def _build_changes(fold: TrailFold, event: Event) -> dict[str, Any]:
    match event.kind:
        case EventKind.BUILD_STARTED | EventKind.BUILD_WAITING | EventKind.REPLICAS_UNPLACED:
            return {"tasks": (*fold.tasks, event.mark)[-_MAX_TASKS:]}
        case EventKind.BUILD_FAILED if not event.key:
            return {"tasks": (*fold.tasks, event.mark)[-_MAX_TASKS:]}
        case EventKind.QUARANTINED:
            inmate = {event.mark: (event.model, event.generation)}
            return {"quarantined": fold.quarantined | inmate}
        case EventKind.BUILD_FINISHED:
            return {
                "engines": fold.engines | {event.key: fold.engines.get(event.key, "")},
                "quarantined": _without(fold.quarantined, (event.key,)),
            }
        case _ if event.mark.startswith(_RECORD_MARK):
            number = int(event.mark.removeprefix(_RECORD_MARK))
            return {"num_records": fold.num_records | {event.key: number}}
        case _:
            return {"engines": fold.engines | {event.key: event.mark}}


def _load_changes(fold: TrailFold, event: Event) -> dict[str, Any]:
    others = tuple(model for model in fold.unloaded if model != event.model)
    is_unloaded = event.kind is EventKind.MODEL_UNLOADED
    return {
        "num_serving_changes": fold.num_serving_changes | {event.model: int(event.mark)},
        "changed_at": fold.changed_at | {_load_of(event.model): event.at},
        "unloaded": (*others, event.model) if is_unloaded else others,
        "serving": _without(fold.serving, _superseded(fold, event.model)),
    }


def _weight_changes(fold: TrailFold, event: Event) -> dict[str, Any]:
    number, *versions = map(int, event.mark.split())
    return {
        "num_weight_changes": fold.num_weight_changes | {event.model: number},
        "weights": fold.weights | {event.model: tuple(versions)},
        "changed_at": fold.changed_at | {_load_of(event.model): event.at},
        "serving": _without(fold.serving, _superseded(fold, event.model)),
    }


def _removal_changes(fold: TrailFold, event: Event) -> dict[str, Any]:
    removed = (*fold.removed.get(event.model, ()), event.version)
    newer = range(event.version + 1, fold.versions.get(event.model, 0) + 1)
    # What serves follows from the removal of the newest alone.
    changed = {_load_of(event.model): event.at} if set(newer) <= set(removed) else {}
    gone = f"{event.model}/{event.version}/"
    ended = [where for where in fold.serving if where.startswith(gone)]
    is_last = event.version == fold.versions.get(event.model)
    return {
        "removed": fold.removed | {event.model: removed},
        "changed_at": fold.changed_at | changed,
        "serving": _without(fold.serving, (*ended, *_superseded(fold, event.model))),
        # The same master that is added once more is no change of a recipe.
        "masters": _without(fold.masters, (event.model,) if is_last else ()),
    }


def _rebuild_of(model: str) -> str:
    """The subject of a rebuild in `TrailFold.changed_at`; nothing else can be named so."""
    return f"rebuild {model}"


def _load_of(model: str) -> str:
    """The subject of a load, an unload, weights or a removal there."""
    return f"load {model}"


def _without_generation(fold: TrailFold, generation: str) -> dict[str, Any]:
    places = [where for where in fold.serving if where.endswith(f"/{generation}")]
    return {
        "node_classes": _without(fold.node_classes, (generation,)),
        "changed_at": _without(fold.changed_at, (generation,)),
        "serving": _without(fold.serving, places),
    }


def _old_places(fold: TrailFold, places: Iterable[str], event: Event) -> Iterator[str]:
    """Those of versions before the last one, but for weights: nobody asks any more."""
    for where in places:
        model, version, _ = where.rsplit("/", 2)
        is_old = int(version) < event.version - 1
        if model == event.model and is_old and int(version) not in fold.weights.get(model, ()):
            yield where


def _superseded(fold: TrailFold, model: str) -> list[str]:
    """Places where a newer version took over all requests: of that end no event tells."""
    sharing = fold.weights.get(model, ())
    parts = [(where, *where.rsplit("/", 2)) for where in fold.serving]
    ours = [(where, int(number), there) for where, name, number, there in parts if name == model]
    newest: dict[str, int] = {}
    for _, version, generation in ours:
        newest[generation] = max(version, newest.get(generation, 0))
    return [
        where
        for where, version, generation in ours
        if version < newest[generation] and version not in sharing
    ]


def _let_out(fold: TrailFold, request: Event) -> Iterator[str]:
    for mark, (model, generation) in fold.quarantined.items():
        if model == request.model and request.generation in ("", generation):
            yield mark


def _without(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    gone = set(names)
    return {name: value for name, value in values.items() if name not in gone}
