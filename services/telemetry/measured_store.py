"""An artifact store that counts its requests: faults of a store show before a build is lost."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from services.contracts.errors import AlreadyPublishedError, NotFoundError, StoreError
from services.contracts.model.manifest import BlobRef
from services.contracts.store.artifact_store import ArtifactStore, StoredObject
from services.telemetry import catalog
from services.telemetry.recorder import Recorder


class StoreOperation(StrEnum):
    """The verbs of a store; a list is of keys or of objects."""

    PUT_BLOB = "put_blob"
    FETCH_BLOB = "fetch_blob"
    CREATE = "create"
    READ = "read"
    LIST = "list"
    DELETE = "delete"


class StoreOutcome(StrEnum):
    """How a request to the store ended."""

    OK = "ok"
    ERROR = "error"


class MeasuredStore:
    """An ArtifactStore that records `smelt_store_requests_total`, and changes nothing else."""

    def __init__(self, inner: ArtifactStore, recorder: Recorder) -> None:
        self._inner = inner
        self._recorder = recorder
        # A rate needs a first value: one error must not be the beginning of its own series.
        for operation in StoreOperation:
            for outcome in StoreOutcome:
                self._count(operation, outcome, 0)

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def url(self) -> str:
        """What opens it."""
        return self._inner.url

    def put_blob(self, source: Path) -> BlobRef:
        """Store a file's bytes; raises as the store does."""
        with self._counted(StoreOperation.PUT_BLOB):
            return self._inner.put_blob(source)

    def fetch_blob(self, ref: BlobRef, target: Path) -> None:
        """Write a blob to a file; raises as the store does."""
        with self._counted(StoreOperation.FETCH_BLOB):
            self._inner.fetch_blob(ref, target)

    def create(self, key: str, data: bytes) -> None:
        """Create an object; raises as the store does."""
        with self._counted(StoreOperation.CREATE):
            self._inner.create(key, data)

    def read(self, key: str) -> bytes:
        """Read an object; raises as the store does."""
        with self._counted(StoreOperation.READ):
            return self._inner.read(key)

    def delete(self, key: str) -> None:
        """Remove an object; raises as the store does."""
        with self._counted(StoreOperation.DELETE):
            self._inner.delete(key)

    def list(self, prefix: str) -> list[str]:
        """Keys below a prefix; raises as the store does."""
        with self._counted(StoreOperation.LIST):
            return self._inner.list(prefix)

    def objects(self, prefix: str) -> tuple[StoredObject, ...]:
        """Objects below a prefix, counted as a list; raises as the store does."""
        with self._counted(StoreOperation.LIST):
            return self._inner.objects(prefix)

    @contextmanager
    def _counted(self, operation: StoreOperation) -> Iterator[None]:
        outcome = StoreOutcome.OK
        try:
            yield
        # Before StoreError, which AlreadyPublishedError is one of.
        except (NotFoundError, AlreadyPublishedError):
            # Answers of a store that works.
            raise
        except StoreError:
            outcome = StoreOutcome.ERROR
            raise
        finally:
            self._count(operation, outcome)

    def _count(self, operation: StoreOperation, outcome: StoreOutcome, amount: float = 1.0) -> None:
        self._recorder.count(
            catalog.STORE_REQUESTS, amount, operation=operation.value, outcome=outcome.value
        )
