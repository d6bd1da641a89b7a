"""`smelt events`: who did what, why, and how long after the change."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from services.cli.output.show import print_json, print_line
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.cli.why.stop_signals import stop_signals
from services.contracts.events import Event, EventPosition
from services.contracts.registry.registry import Registry
from services.contracts.text.words import readable_time
from services.controller.explain.running_builds import running_builds, stage_name

# A store has no notifications, and events are there whether or not a controller runs or can be
# reached from here: so the store is polled.
_FOLLOW_PERIOD_S = 0.5
_SHORT = 12


def run_events(
    settings: CliSettings,
    model: str,
    *,
    limit: int,
    is_followed: bool,
    as_json: bool,
    is_wide: bool = False,
) -> None:
    """Print the newest events, and with `is_followed` new ones until Ctrl-C or SIGTERM.

    Args:
        settings: where the store is.
        model: "" for all.
        limit: number of events that are there already.
        is_followed: go on with new ones.
        as_json: print one document for each event.
        is_wide: do not fold long events.

    Raises:
        NotFoundError: there is no such model and never was.
    """
    registry = open_registry(settings)
    # Read before the list, so that no event between the two is lost.
    end = registry.event_end()
    shown = registry.last_events(limit, model)
    if model and not any(event.model == model for _, event in shown):
        _check_known(registry, model)
    if not is_followed:
        _print_all((event for _, event in shown), as_json=as_json, is_wide=is_wide)
        for build in [] if as_json else running_builds(registry, _named(registry, model)):
            print_line(f"now: {_stage_line(build)}", is_folded=not is_wide)
        return
    # Neither signal cuts an event in two.
    with stop_signals() as is_stopped:
        for _, event in shown:
            _print_one(event, as_json=as_json, is_wide=is_wide)
        position = shown[-1][0] if shown else end
        for news in _followed(registry, position, model, is_stopped):
            if not isinstance(news, str):
                _print_one(news, as_json=as_json, is_wide=is_wide)
            elif not as_json:
                print_line(news, is_folded=not is_wide)


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
            if not model or event.model in ("", model):
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


def _print_all(events: Iterable[Event], *, as_json: bool, is_wide: bool) -> None:
    known = list(events)
    if as_json:
        print_json({"events": [_document(event) for event in known]})
    elif not known:
        print_line("no events yet: a controller writes them")
    else:
        for event in known:
            _print_one(event, as_json=False, is_wide=is_wide)


def _print_one(event: Event, *, as_json: bool, is_wide: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(_document(event), ensure_ascii=False) + "\n")
        sys.stdout.flush()
    else:
        print_line(event_line(event), is_folded=not is_wide)


def _document(event: Event) -> dict[str, Any]:
    return event.model_dump(mode="json")
