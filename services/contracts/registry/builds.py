"""Build plans, rebuild requests, build tasks, leases and compile caches in the store."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from services.contracts.builds.build_lease import BuildLease, LeaseRevision
from services.contracts.builds.build_plan import BuildPlan, RebuildRequest, TaskEnd, TaskStart
from services.contracts.builds.compile_caches import CacheRevision, CacheScope
from services.contracts.errors import AlreadyPublishedError, NotFoundError, StoreError
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.document import Document
from services.contracts.model.manifest import BlobRef
from services.contracts.registry.records import RecordKeeper, numbered_key, revision_numbers

_logger = logging.getLogger(__name__)

# A holder goes on every few seconds, and a look takes much less.
_MAX_LOOKS = 8


class BuildRegistry(RecordKeeper):
    """Keeps what is to be built, and finds it."""

    # So that it is logged once.
    _is_delete_refused = False

    @property
    def keeps_leases(self) -> bool:
        """Whether the store refused to delete a lease: each renewal adds an object then."""
        return self._is_delete_refused

    def write_plan(self, plan: BuildPlan) -> bool:
        """Keep a plan; False when the newest of its class is equal already."""
        newest = self.build_plan(plan.model, plan.version, plan.node_class)
        if newest is not None and newest.is_equal_plan(plan):
            return False
        self._records.append(_class_prefix(plan.model, plan.version, plan.node_class), plan)
        return True

    def build_plan(self, model: str, version: int, node_class: NodeClass) -> BuildPlan | None:
        """The newest plan of exactly this class, or None.

        Args:
            model: its name.
            version: of the model.
            node_class: compared whole: another driver is another class.
        """
        prefix = _class_prefix(model, version, node_class)
        numbers = self._records.numbers(prefix)
        if not numbers:
            return None
        return self._records.read(numbered_key(prefix, numbers[-1]), BuildPlan)

    def build_plans(self, model: str, version: int) -> list[BuildPlan]:
        """The newest plan of each class of nodes, oldest first."""
        plans = self.keyed_build_plans(model, version).values()
        return sorted(plans, key=lambda plan: plan.created_at)

    def keyed_build_plans(self, model: str, version: int) -> dict[str, BuildPlan]:
        """The newest plan of each class of nodes, by the key that it is kept under."""
        keys = self._records.keys(_version_prefix(model, version))
        folders = sorted({key.rpartition("/")[0] + "/" for key in keys})
        newest = [(folder, revision_numbers(keys, folder)) for folder in folders]
        found = [numbered_key(folder, numbers[-1]) for folder, numbers in newest if numbers]
        return {key: self._records.read(key, BuildPlan) for key in found}

    def request_rebuild(self, request: RebuildRequest) -> int:
        """Keep a request; returns its number."""
        return self._records.append(_rebuilds_prefix(request.model), request)

    def rebuild_requests(self, model: str) -> list[RebuildRequest]:
        """All requests for a model, oldest first."""
        return self._records.revisions(_rebuilds_prefix(model), RebuildRequest)

    def start_task(self, start: TaskStart) -> None:
        """Keep what a task is to do, before it is launched; one that is there stays."""
        self._create_once(_task_key(start.name, "started"), start)

    def end_task(self, end: TaskEnd) -> None:
        """Keep how a task ended; the first account stays."""
        self._create_once(_task_key(end.name, "ended"), end)

    def task_start(self, name: str) -> TaskStart | None:
        """What a task was to do; None when it is not ours."""
        try:
            return self._records.read(_task_key(name, "started"), TaskStart)
        except NotFoundError:
            return None

    def task_end(self, name: str) -> TaskEnd | None:
        """How a task without a plan ended; None when it did not."""
        try:
            return self._records.read(_task_key(name, "ended"), TaskEnd)
        except NotFoundError:
            return None

    def lease(self, key_digest: str) -> LeaseRevision:
        """The newest lease of a key; number 0 when there is none.

        Raises:
            StoreError: the holder renewed it at each of a few attempts to read it.
        """
        prefix = _leases_prefix(key_digest)
        for _ in range(_MAX_LOOKS):
            numbers = self._records.numbers(prefix)
            if not numbers:
                return LeaseRevision()
            # Read without keeping it: the same one is not asked for again.
            with suppress(NotFoundError):
                data = self._store.read(numbered_key(prefix, numbers[-1]))
                return LeaseRevision(number=numbers[-1], lease=_lease_in(data))
            # Its holder went on to the next number meanwhile, and removed this one.
        raise StoreError(f"'{prefix}' changes faster than it can be read; try again")

    def offer_lease(self, key_digest: str, number: int, lease: BuildLease) -> bool:
        """Create a lease under a number.

        Older numbers are removed, where the store allows that.

        Args:
            key_digest: of the build key.
            number: one above that of the lease which was seen last.
            lease: to be created.

        Returns:
            False when another process created that number or a higher one.
        """
        prefix = _leases_prefix(key_digest)
        try:
            self._records.create(numbered_key(prefix, number), lease)
        except (AlreadyPublishedError, NotFoundError):
            # Not there any more: its holder went on to the next one while we looked at it.
            return False
        numbers = self._records.numbers(prefix)
        # A number that was removed is free again, but only below what is never removed.
        is_newest = max(numbers, default=number) == number
        if is_newest:
            self._forget(numbered_key(prefix, each) for each in numbers if each < number)
        return is_newest

    def _forget(self, keys: Iterable[str]) -> None:
        """Remove documents that are superseded; where that is refused they stay."""
        try:
            for key in keys:
                self._store.delete(key)
                self._is_delete_refused = False
        except StoreError as error:
            if not self._is_delete_refused:
                _logger.warning(
                    "former leases cannot be deleted, which costs disk space alone: %s", error
                )
            self._is_delete_refused = True

    def _create_once(self, key: str, document: Document) -> None:
        try:
            self._records.create(key, document)
        except AlreadyPublishedError:
            return  # the same fact, written by a controller that was killed right after


def _lease_in(data: bytes) -> BuildLease | None:
    try:
        return BuildLease.from_json(data)
    except ValidationError:
        return None


def _version_prefix(model: str, version: int) -> str:
    return f"plans/{model}/{version:06d}/"


def _class_prefix(model: str, version: int, node_class: NodeClass) -> str:
    return f"{_version_prefix(model, version)}{node_class.digest()}/"


def _rebuilds_prefix(model: str) -> str:
    return f"rebuilds/{model}/"


def _leases_prefix(key_digest: str) -> str:
    return f"leases/{key_digest}/"


def _task_key(name: str, what: str) -> str:
    return f"tasks/{name}/{what}.json"


class CacheRegistry(RecordKeeper):
    """Keeps what compilers may use again, and finds it."""

    def compile_cache(self, scope: CacheScope) -> tuple[int, CacheRevision | None]:
        """The newest revision and its number; None and 0 without one, None for a foreign one."""
        prefix = _prefix(scope)
        numbers = self._records.numbers(prefix)
        if not numbers:
            return 0, None
        data = self._store.read(numbered_key(prefix, numbers[-1]))
        try:
            return numbers[-1], CacheRevision.from_json(data)
        except ValidationError:
            return numbers[-1], None

    def offer_compile_cache(self, number: int, revision: CacheRevision) -> bool:
        """Create a revision under a number; False when another worker's has it."""
        try:
            self._records.create(numbered_key(_prefix(revision.scope), number), revision)
        except AlreadyPublishedError:
            return False
        return True

    def put_cache_file(self, path: Path) -> BlobRef:
        """Store a file that a revision will name."""
        return self._store.put_blob(path)

    def fetch_cache_file(self, ref: BlobRef, target: Path) -> None:
        """Write a cache's file, verified, whole or not at all; raises as `fetch_blob` does."""
        self._store.fetch_blob(ref, target)


def _prefix(scope: CacheScope) -> str:
    return f"caches/{scope.digest()}/"
