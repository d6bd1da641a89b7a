"""`smelt prune`: what the store may lose, and have it lose that."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from services.cli.models.version_states import fleet_or_why_not
from services.cli.output.show import show
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError
from services.contracts.registry.registry import Registry
from services.contracts.store.artifact_store import StoredObject
from services.contracts.store.object_store import open_store
from services.contracts.store.prune import InUse, plan_prune, prune
from services.contracts.text.text_table import Table
from services.contracts.text.words import readable_size
from services.controller.events.event_state import EventState


def run_prune(settings: CliSettings, *, older_than_days: int, is_confirmed: bool) -> None:
    """Show what may go, and delete it when that was confirmed.

    Args:
        settings: where the store is.
        older_than_days: objects younger than this stay.
        is_confirmed: delete them; False only shows them.

    Raises:
        InvalidRequestError: less than a day.
        NotFoundError: no store is there.
        StoreError: a document that names what is needed cannot be read, or nothing may be deleted.
    """
    if older_than_days < 1:
        raise InvalidRequestError(
            f"--older-than {older_than_days}: expected 1 or more: objects of a publish in progress "
            "are not referenced yet and would be deleted"
        )
    store = open_store(settings.store_url, must_exist=True)
    registry = Registry(store, settings.cache_dir)
    now = datetime.now(UTC)
    in_use = _in_use(settings, registry)
    plan = plan_prune(store, registry, now - timedelta(days=older_than_days), in_use)
    newer = None if plan.objects else plan_prune(store, registry, now, in_use)
    if is_confirmed:
        prune(store, plan)
    unused = {what: _unused(objects) for what, objects in plan.objects.items()}
    document = {"is_deleted": is_confirmed, "num_bytes": plan.num_bytes, "unused": unused}
    text = _text(document, settings.store_url)
    if newer is not None:
        num = sum(map(len, newer.objects.values()))
        words = f"{num} objects, {readable_size(newer.num_bytes)}" if num else "none"
        text = iter([f"nothing unused is older than {older_than_days} days; newer: {words}"])
    show(document, text)


def _unused(objects: Sequence[StoredObject]) -> dict[str, Any]:
    days = sorted(each.modified_at.date().isoformat() for each in objects)
    return {
        "num_objects": len(objects),
        "num_bytes": sum(each.num_bytes for each in objects),
        "oldest": days[0],
        "newest": days[-1],
        "keys": [each.key for each in objects],
    }


def _text(document: dict[str, Any], store_url: str) -> Iterator[str | Table]:
    rows = [
        (what, str(u["num_objects"]), u["oldest"], u["newest"], readable_size(u["num_bytes"]))
        for what, u in document["unused"].items()
    ]
    yield Table("unused", ("what", "objects", "oldest", "newest", "size"), rows)
    words = f"{readable_size(document['num_bytes'])} in {store_url}"
    nothing = f"Nothing was deleted: {words} would be, with --yes."
    yield f"Deleted {words}." if document["is_deleted"] else nothing


def _in_use(settings: CliSettings, registry: Registry) -> InUse:
    """What serves: by the events of any fleet on the store, and by this host's fleet."""
    # Events since the last checkpoint: a fleet elsewhere may serve from this store, and cannot be
    # asked from here.
    checkpoint = registry.last_checkpoint()
    state = EventState(checkpoint)
    for _, event in registry.events_after(state.position):
        # An event of a newer release, which this one does not know.
        with suppress(ValueError):
            state.apply(event)
    serving = {event.key for event in state.serving() if event.key}
    # Replicas report what they run now; an event of it may be missing still.
    snapshot, _ = fleet_or_why_not(settings)
    if snapshot is not None:
        serving |= {report.engine_digest for report in snapshot.replicas if report.engine_digest}
    return InUse(
        serving=serving,
        node_classes={g: tuple(mark.split(",")) for g, mark in state.classes().items()},
        event_day=checkpoint.position.day,
    )
