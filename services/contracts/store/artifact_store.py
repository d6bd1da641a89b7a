"""The artifact store: what every backend promises, in seven verbs.

It has two kinds of objects. Blobs are bytes named by their own sha256; writing one
twice is harmless. Objects are small JSON documents under a path, created once and never
overwritten; the first to create wins, so half of anything is never visible: all blobs are
there before the manifest that names them. Only who holds what now is deleted, and where that is
not allowed it stays; what nothing needs any more is removed by `prune`. Keys
are `str` with `/`, because object stores have no folders.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

from services.contracts.errors import StoreError
from services.contracts.model.manifest import BlobRef


class StoredObject(NamedTuple):
    """An object of a store, without its bytes."""

    key: str
    num_bytes: int
    modified_at: datetime


class ArtifactStore(Protocol):
    """A place that outlives every process; local folder, S3 and others alike."""

    @property
    def url(self) -> str:
        """What opens it; for commands that people are shown."""
        ...

    def put_blob(self, source: Path) -> BlobRef:
        """Store a file's bytes under their digest; does nothing when they are there."""
        ...

    def fetch_blob(self, ref: BlobRef, target: Path) -> None:
        """Write a blob to a file, whole or not at all.

        Raises:
            NotFoundError: no such blob.
            CorruptBlobError: the bytes do not have that digest; the file is not written.
        """
        ...

    def create(self, key: str, data: bytes) -> None:
        """Create an object; raises AlreadyPublishedError when the key exists."""
        ...

    def read(self, key: str) -> bytes:
        """Read an object; raises NotFoundError."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object, if it is there; raises StoreError where that is not allowed."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Keys of all objects below a prefix that ends with '/', sorted."""
        ...

    def objects(self, prefix: str) -> tuple[StoredObject, ...]:
        """All objects below a prefix that ends with '/', by key, with their sizes and times."""
        ...


def objects_now(store: ArtifactStore, mark: str) -> tuple[tuple[StoredObject, ...], datetime]:
    """What is beside a key, and the store's time, which is no clock of this host.

    Args:
        store: that is asked.
        mark: the key of an empty object, which is written to see its time, then deleted.

    Raises:
        StoreError: the store failed, or another process deleted the mark.
    """
    store.create(mark, b"")
    try:
        found = store.objects(mark.rpartition("/")[0] + "/")
    finally:
        # As in the test of the create, no permission to delete is needed.
        with suppress(StoreError):
            store.delete(mark)
    now = next((each.modified_at for each in found if each.key == mark), None)
    if now is None:
        raise StoreError(f"'{mark}', which shows the store's time, was deleted at once; try again")
    return tuple(each for each in found if each.key != mark), now


def put_files(store: ArtifactStore, files: Mapping[str, Path]) -> dict[str, BlobRef]:
    """Store files as blobs, by name; raises as `put_blob` and `check_file_names` do."""
    check_file_names(files)
    return {name: store.put_blob(path) for name, path in files.items()}


def check_file_names(names: Iterable[str]) -> None:
    """Raise StoreError for a name that would be written outside its folder."""
    for name in names:
        path = PurePosixPath(name)
        if not path.parts or path.is_absolute() or ".." in path.parts:
            raise StoreError(
                f"file name '{name}': expected a relative path below its folder without '..'"
            )
