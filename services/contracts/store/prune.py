"""What a store may lose: what nothing serves, plans or names any more, once it is old enough.

Kept in any case: whatever is younger than the limit; every version that was not removed, with its
master, samples and plans; each engine that serves, or that a plan for nodes which are there names;
each blob that any document names which stays. So a blob of several manifests goes with the last.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from services.contracts.builds.build_plan import BuildPlan
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry
from services.contracts.registry.sample_windows import beyond_bounds
from services.contracts.store.artifact_store import StoredObject
from services.contracts.store.object_store import ObstoreArtifactStore

_BLOBS = "blobs/sha256/"
# As canonical JSON has a BlobRef, wherever it stands in a document.
_BLOB_REF = re.compile(rb'"sha256":"([0-9a-f]{64})"')
# Small, or without it the store could not be read: their growth is that of what people ask for.
_KEPT_FOLDERS = ("models/", "rebuilds/", "serving/", "weights/", "selftest/", "event-checkpoints/")
_DOCUMENT_FOLDERS = (
    "masters/",
    "engines/",
    "joint_runs/",
    "plans/",
    "builds/",
    "leases/",
    "tasks/",
    "caches/",
    "events/",
    "event-days/",
    "event-folds/",
    "samples/",
)


@dataclass(frozen=True, kw_only=True)
class InUse:
    """What a fleet needs that the store alone does not show.

    Attributes:
        serving: digests of the engines that serve.
        node_classes: digests of the classes of nodes that are there, or their beginnings, by
            generation.
        event_day: the controller reads events from this day on.
    """

    serving: Collection[str] = ()
    node_classes: Mapping[str, Collection[str]] = field(default_factory=dict)
    event_day: str = ""


@dataclass(frozen=True)
class PrunePlan:
    """What would go.

    Attributes:
        objects: by what they are, in the order in which they go: documents before their blobs.
    """

    objects: Mapping[str, tuple[StoredObject, ...]]

    @property
    def num_bytes(self) -> int:
        """Of all of them."""
        return sum(each.num_bytes for group in self.objects.values() for each in group)


def plan_prune(
    store: ObstoreArtifactStore, registry: Registry, before: datetime, in_use: InUse
) -> PrunePlan:
    """Find what may go.

    Args:
        store: all of it is listed.
        registry: on that store.
        before: nothing that was written later goes.
        in_use: by the fleet.

    Raises:
        StoreError: the store failed, or a version or plan cannot be read: of a newer release,
            so nothing is known of what it needs.
    """
    objects = {folder: store.objects(folder) for folder in _DOCUMENT_FOLDERS}
    needed = _needed(registry, in_use)
    # Whole days: readers take a missing number for the end of a day.
    first_day = min(in_use.event_day, before.date().isoformat())
    rules: dict[str, Callable[[str], bool]] = {
        "engines": _of_a_needed_engine(needed, objects["engines/"], before),
        "joint_runs": lambda key: key.split("/")[1] in needed.masters,
        "masters": lambda key: key.split("/")[1].removesuffix(".json") in needed.masters,
        "plans": lambda key: key in needed.plan_keys,
        "builds": lambda key: key.split("/")[1] in needed.keys,
        "leases": lambda key: key.split("/")[1] in {*needed.keys, "controller"},
        "tasks": lambda key: _is_of_a_version(registry, key.split("/")[1], needed.versions),
        # What compilers may use again: without it they only take longer.
        "caches": lambda _: False,
        "events": lambda key: key.split("/")[1] >= first_day,
        # As older controllers kept what their events amount to.
        "event-folds": lambda _: False,
        "samples": _of_young_samples(registry, objects["samples/"]),
        "event-days": lambda key: key.split("/")[1].removesuffix(".json") >= first_day,
    }
    gone = {
        name: tuple(
            each
            for each in objects[f"{name}/"]
            if each.modified_at < before and not is_needed(each.key)
        )
        for name, is_needed in rules.items()
    }
    gone["blobs"] = tuple(_unnamed_blobs(store, objects, gone, needed.removed, before))
    return PrunePlan({name: found for name, found in gone.items() if found})


def prune(store: ObstoreArtifactStore, plan: PrunePlan) -> None:
    """Delete what is in a plan; a second call, or one that goes on after a fault, is harmless.

    Args:
        store: that the plan is of.
        plan: what was written since stays: a publisher that names an old blob again writes it
            anew, so that it is younger than any limit.

    Raises:
        StoreError: the store failed, or does not allow deleting.
    """
    for what, group in plan.objects.items():
        # Reading and deleting documents takes minutes: a blob that was put anew has another time.
        found = set(group).intersection(store.objects(_BLOBS)) if what == "blobs" else group
        # Manifests make engines visible, so they go before what they name.
        for each in sorted(found, key=lambda each: not each.key.endswith("/manifest.json")):
            store.delete(each.key)


@dataclass(frozen=True, kw_only=True)
class _Needed:
    """Names of what stays.

    Attributes:
        keys: build keys that are planned or serve.
        unplanned: masters of versions without any plan: they are built by hand.
        removed: keys of the documents of versions that were removed.
    """

    versions: Collection[tuple[str, int]]
    masters: Collection[str]
    keys: Collection[str]
    unplanned: Collection[str]
    plan_keys: Collection[str]
    removed: Collection[str]


def _needed(registry: Registry, in_use: InUse) -> _Needed:
    versions: set[tuple[str, int]] = set()
    masters: set[str] = set()
    unplanned: set[str] = set()
    keys = set(in_use.serving)
    plan_keys: set[str] = set()
    for version in _versions(registry):
        versions.add((version.name, version.version))
        masters.add(version.master.digest)
        plans = registry.keyed_build_plans(version.name, version.version)
        wanted = _wanted_plans(plans, in_use)
        if not plans:
            unplanned.add(version.master.digest)
        plan_keys |= wanted.keys()
        keys |= {planned.digest for plan in wanted.values() for planned in plan.planned}
    removed = {
        f"models/{name}/versions/{number:06d}.json"
        for name, numbers in registry.removed_versions().items()
        for number in numbers
    }
    return _Needed(
        versions=versions,
        masters=masters,
        keys=keys,
        unplanned=unplanned,
        plan_keys=plan_keys,
        removed=removed,
    )


def _versions(registry: Registry) -> Iterator[ModelVersion]:
    for name in registry.model_names():
        yield from registry.versions(name)


def _wanted_plans(plans: Mapping[str, BuildPlan], in_use: InUse) -> dict[str, BuildPlan]:
    """Those for nodes that are there, and all of generations of which none is, or none is known.

    Nodes that say little of themselves are of no class that a plan has: then all of theirs stay.
    """
    present = {plan.node_class.generation for plan in plans.values() if _is_present(plan, in_use)}
    return {
        key: plan
        for key, plan in plans.items()
        if plan.node_class.generation not in present or _is_present(plan, in_use)
    }


def _is_present(plan: BuildPlan, in_use: InUse) -> bool:
    digest = plan.node_class.digest()
    known = in_use.node_classes.get(plan.node_class.generation, ())
    return any(digest.startswith(each) for each in known if each)


def _of_a_needed_engine(
    needed: _Needed, objects: Iterable[StoredObject], before: datetime
) -> Callable[[str], bool]:
    # An engine goes whole or not at all: one with a proof of yesterday is looked at still.
    young = {_engine_of(each.key) for each in objects if each.modified_at >= before}

    def is_needed(key: str) -> bool:
        _, master, digest = _engine_of(key)
        return digest in needed.keys or master in needed.unplanned or _engine_of(key) in young

    return is_needed


def _engine_of(key: str) -> tuple[str, ...]:
    return tuple([*key.split("/"), "", ""][:3])


def _of_young_samples(registry: Registry, objects: Iterable[StoredObject]) -> Callable[[str], bool]:
    """Those that the recipe of their version still keeps; replicas delete others while they run."""
    sampling = {(each.name, each.version): each.recipe.sampling for each in _versions(registry)}
    stored = {each.key: each for each in objects}
    now = datetime.now(UTC)
    needed = set()
    for key, window in registry.sample_windows().items():
        kept = sampling.get((window.model, window.version))
        both = {key, key.removesuffix(".json") + ".npz"}
        own = [stored[each] for each in both & stored.keys()]
        if kept and not beyond_bounds(own, {key: window}, kept, now):
            needed |= both
    return needed.__contains__


def _is_of_a_version(registry: Registry, task: str, versions: Collection[tuple[str, int]]) -> bool:
    """Whether a task is for a version that is there: its ends say what was quarantined."""
    start = registry.task_start(task)
    return start is not None and (start.model, start.version) in versions


def _unnamed_blobs(
    store: ObstoreArtifactStore,
    objects: Mapping[str, Iterable[StoredObject]],
    gone: Mapping[str, Iterable[StoredObject]],
    removed: Collection[str],
    before: datetime,
) -> Iterator[StoredObject]:
    without = {each.key for group in gone.values() for each in group} | set(removed)
    named: set[str] = set()
    kept = [each for folder in _KEPT_FOLDERS for each in store.objects(folder)]
    for each in (*kept, *(each for group in objects.values() for each in group)):
        # Events and samples name none, and there may be many.
        if each.key not in without and not each.key.startswith(("events/", "samples/")):
            named |= {found.decode() for found in _BLOB_REF.findall(store.read(each.key))}
    for blob in store.objects(_BLOBS):
        if blob.key.removeprefix(_BLOBS) not in named and blob.modified_at < before:
            yield blob
