"""`smelt events`: who did what, why, and how long after the change."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from services.cli.output.show import OUTPUT_FORM, show, show_entry
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.cli.why.stop_signals import stop_signals
from services.contracts.events import Event, EventPosition
from services.contracts.registry.event_log import MOST_SEARCHED
from services.contracts.registry.registry import Registry
from services.contracts.text.words import readable_time
from services.controller.explain.running_builds import running_builds, stage_name

# A store has no notifications, and events are there whether or not a controller runs or can be
# reached from here: so the store is polled.
_FOLLOW_PERIOD_S = 0.5
_SHORT = 12


def run_events(settings: CliSettings, model: str, *, limit: int, is_followed: bool) -> None:
    """Print the newest events, and with `is_followed` new ones until Ctrl-C or SIGTERM.

    Args:
        settings: where the store is.
        model: "" for all.
        limit: number of events that are there already.
        is_followed: go on with new ones.

    Raises:
        NotFoundError: there is no such model and never was.
    """
    registry = open_registry(settings)
    # Read before the list, so that no event between the two is lost.
    end = registry.event_end()
    shown, is_cut = registry.search_events(limit, lambda event: event.is_about(model))
    if model and not any(event.model == model for _, event in shown):
        _check_known(registry, model)
    if not is_followed:
        events = [event for _, event in shown]
        unread = _unread_words(model, max(limit, MOST_SEARCHED)) if is_cut else ""
        document = {"events": [_document(event) for event in events], "unread": unread}
        show(document, _text(registry, model, events, unread))
        return
    # Neither signal cuts an event in two.
    with stop_signals() as is_stopped:
        for _, event in shown:
            _show(event)
        # Not from the last one that is shown on: it may be long ago.
        reached = shown[-1][0] if shown else end
        position = max(end, reached, key=lambda each: (each.day, each.number))
        for entry in _followed(registry, position, model, is_stopped):
            if not isinstance(entry, str):
                _show(entry)
            elif not OUTPUT_FORM.get().as_json:
                show_entry(None, entry, is_folded=True)


def _check_known(registry: Registry, model: str) -> None:
    """Raise NotFoundError for a model that is not there and never was."""
    if model not in registry.removed_versions():
        registry.require_version(model)


def event_line(event: Event) -> str:
    """One event for people."""
    subject = " ".join(
        part
        for part in (
            f"{event.model} v{event.version}" if event.model else "",
            event.generation,
            event.key[:_SHORT],
        )
        if part
    )
    by = "" if event.actor == "controller" else f" by {event.actor}"
    return f"{readable_time(event.at)} {event.kind:<20} {subject}{by}: {event.words}"


def _followed(
    registry: Registry, position: EventPosition, model: str, is_stopped: Callable[[float], bool]
) -> Iterator[Event | str]:
    """New events, and of one model a line for each stage that a build of it enters."""
    stages: set[str] = set()
    while not is_stopped(_FOLLOW_PERIOD_S):
        # Of all models, each look would read the leases of all their keys.
        builds = running_builds(registry, _named(registry, model) if model else ())
        now = {_stage_line(build): build["stage_since"] for build in builds}
        yield from sorted(now.keys() - stages, key=lambda line: now[line])
        stages = set(now)
        # The position moves for events that are not shown too: they are not read again.
        for reached, event in registry.events_after(position):
            position = reached
            if event.is_about(model):
                yield event


def _named(registry: Registry, model: str) -> list[str]:
    """The model, or all for ""; none that was removed."""
    return [name for name in registry.model_names() if model in ("", name)]


def _stage_line(build: dict[str, Any]) -> str:
    """The stage that a worker has entered, as a line of an event: it is none, and kept nowhere."""
    subject = f"{build['model']} v{build['version']} {build['generation']}"
    return (
        f"{readable_time(build['stage_since'])} {stage_name(build['stage']):<20} {subject} "
        f"{build['digest'][:_SHORT]}: {build['kind']} {build['precision']}"
    )


def _unread_words(model: str, num_searched: int) -> str:
    return (
        f"events before the last {num_searched} were not searched; to search more: "
        f"smelt events {model} --limit {10 * num_searched}"
    )


def _text(registry: Registry, model: str, events: Sequence[Event], unread: str) -> Iterator[str]:
    yield unread
    yield from map(event_line, events)
    if not events and not unread:
        yield "no events yet: a controller writes them"
    for build in running_builds(registry, _named(registry, model)):
        yield f"now: {_stage_line(build)}"


def _show(event: Event) -> None:
    show_entry(_document(event), event_line(event), is_folded=True)


def _document(event: Event) -> dict[str, Any]:
    return event.model_dump(mode="json")
