"""Published files on this machine's disk: fetched once, verified, shared by processes.

A folder is named by the digests of its files, so a cache may outlive its store and serve
several; it appears by one rename, so a reader sees all of it. Digests are compared
at each use: a proof is about bytes, and these may have changed since they were fetched.

What was not used for longest goes when the cache takes more than its share of the disk. A file
that a process holds open stays readable for it.
"""

import hashlib
import logging
import math
import os
import shutil
from pathlib import Path

from services.contracts.model.document import canonical_json
from services.contracts.model.manifest import BlobRef
from services.contracts.store.artifact_store import ArtifactStore, check_file_names
from services.contracts.store.kept_files import STAGING, entries, remove_oldest
from services.contracts.store.scratch import scratch_folder

_logger = logging.getLogger(__name__)

# Of the file system that the cache is on.
_SHARE_OF_DISK = 0.25


class FileCache:
    """Materialises blobs of a store below one folder."""

    def __init__(self, store: ArtifactStore, root: Path, *, max_bytes: int | None = None) -> None:
        """Nothing is made yet.

        Args:
            store: has the blobs.
            root: of the cache.
            max_bytes: from which on what was not used for longest goes; None takes a quarter of
                the disk. What was used within the last hour stays in any case.
        """
        self._store = store
        self._root = root
        self._max_bytes = max_bytes

    def folder(self, files: dict[str, BlobRef]) -> Path:
        """A folder with these files by name; fetched and verified when it is not there.

        Raises:
            NotFoundError: a blob is missing.
            CorruptBlobError: a blob's bytes do not have its digest; no folder appears.
            StoreError: a file name would leave the folder, or the store failed.
        """
        check_file_names(files)
        target = self._root / "folders" / _folder_name(files)
        if not _is_whole(target, files):
            self._fill(target, files)
            self._evict()
        os.utime(target)
        return target

    def file(self, ref: BlobRef, suffix: str) -> Path:
        """One blob as a file; raises as `folder` does."""
        target = self._root / "files" / f"{ref.sha256}{suffix}"
        if not ref.is_of(target):
            with scratch_folder(target.parent, STAGING, abandoned=f"{STAGING}*") as staging:
                # Not straight to its place: what a killed fetcher leaves there is never removed.
                self._store.fetch_blob(ref, staging / target.name)
                (staging / target.name).replace(target)
            self._evict()
        os.utime(target)
        return target

    def _evict(self) -> None:
        """Remove what was not used for longest until the rest is within its bound."""
        max_bytes = self._max_bytes
        if max_bytes is None:
            max_bytes = int(shutil.disk_usage(self._root).total * _SHARE_OF_DISK)
        paths = (self._root / place for place in ("folders", "files"))
        found = entries(each for place in paths for each in place.glob("[!.]*"))
        for path in remove_oldest(found, max_bytes=max_bytes, max_age_s=math.inf):
            _logger.info("cached %s goes: the cache may have %d bytes", path, max_bytes)

    def _fill(self, target: Path, files: dict[str, BlobRef]) -> None:
        with scratch_folder(target.parent, STAGING, abandoned=f"{STAGING}*") as staging:
            new = staging / "new"
            new.mkdir()
            for name, ref in files.items():
                self._store.fetch_blob(ref, new / name)
            _put_in_place(new, target, staging / "damaged", files)


def _put_in_place(new: Path, target: Path, aside: Path, files: dict[str, BlobRef]) -> None:
    # Another process may do the same: a rename onto a filled folder fails, and theirs serves.
    if target.exists() and not _is_whole(target, files):
        _logger.warning("cached folder %s is damaged; fetched again", target)
        target.rename(aside)
    try:
        new.rename(target)
    except OSError:
        if not _is_whole(target, files):
            raise


def _folder_name(files: dict[str, BlobRef]) -> str:
    digests = {name: ref.sha256 for name, ref in files.items()}
    return hashlib.sha256(canonical_json(digests)).hexdigest()


def _is_whole(folder: Path, files: dict[str, BlobRef]) -> bool:
    return folder.is_dir() and all(files[name].is_of(folder / name) for name in files)
