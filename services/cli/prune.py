"""`smelt prune`: what the store may lose, and have it lose that."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from services.cli.output import console, print_json, print_table, readable_size
from services.cli.settings import CliSettings
from services.cli.version_states import fleet_or_why_not
from services.contracts.object_store import open_store
from services.contracts.prune import InUse, PrunePlan, plan_prune, prune
from services.contracts.registry import Registry
from services.contracts.store import StoredObject
from services.controller.event_fold import FALLBACK, fold_event


def run_prune(
    settings: CliSettings, *, older_than_days: int, is_confirmed: bool, as_json: bool
) -> None:
    """Show what may go, and delete it when that was confirmed.

    Raises:
        NotFoundError: no store is there.
        StoreError: a document that says what is needed cannot be read, or nothing may be deleted.
    """
    store = open_store(settings.store_url, must_exist=True)
    registry = Registry(store, settings.cache_dir)
    before = datetime.now(UTC) - timedelta(days=older_than_days)
    plan = plan_prune(store, registry, before, _in_use(settings, registry))
    if is_confirmed:
        prune(store, plan)
    if as_json:
        print_json(_document(plan, is_deleted=is_confirmed))
        return
    rows = [
        [what, str(len(objects)), *_ages(objects), readable_size(_size(objects))]
        for what, objects in plan.objects.items()
    ]
    print_table("unused", ["what", "objects", "oldest", "newest", "size"], rows)
    if not rows:
        return
    words = f"{readable_size(plan.num_bytes)} in {settings.store_url}"
    if is_confirmed:
        console.print(f"Deleted {words}.", soft_wrap=True)
    else:
        console.print(f"Nothing was deleted: {words} would be, with --yes.", soft_wrap=True)


def _in_use(settings: CliSettings, registry: Registry) -> InUse:
    """What serves: by the event trail of any fleet on the store, and by this host's fleet."""
    fold = registry.last_fold()
    for position, event in registry.events_after(fold.position):
        fold = fold_event(fold, event, position)
    serving = {digest for digest in fold.serving.values() if digest != FALLBACK}
    snapshot, _ = fleet_or_why_not(settings)
    if snapshot is not None:
        serving |= {report.engine_digest for report in snapshot.replicas if report.engine_digest}
    return InUse(
        serving=serving,
        node_classes={g: tuple(mark.split(",")) for g, mark in fold.node_classes.items()},
        event_day=fold.position.day,
    )


def _size(objects: Iterable[StoredObject]) -> int:
    return sum(each.num_bytes for each in objects)


def _ages(objects: Iterable[StoredObject]) -> tuple[str, str]:
    days = sorted(each.modified_at.date().isoformat() for each in objects)
    return days[0], days[-1]


def _document(plan: PrunePlan, *, is_deleted: bool) -> dict[str, Any]:
    num_bytes = Counter({what: _size(objects) for what, objects in plan.objects.items()})
    return {
        "is_deleted": is_deleted,
        "num_bytes": plan.num_bytes,
        "unused": {
            what: {
                "num_objects": len(objects),
                "num_bytes": num_bytes[what],
                "oldest": _ages(objects)[0],
                "newest": _ages(objects)[1],
                "keys": [each.key for each in objects],
            }
            for what, objects in plan.objects.items()
        },
    }
