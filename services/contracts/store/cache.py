"""Published files on this machine's disk: fetched once, verified, shared by processes.

A folder is named by the digests of its files, so a cache may outlive its store and serve
several; it appears by one rename, so a reader sees all of it. Digests are compared
at each use: a proof is about bytes, and these may have changed since they were fetched.

What was not used for longest goes when the cache takes more than its share of the disk. A file
that a process holds open stays readable for it.
"""

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from services.contracts.model.document import canonical_json
from services.contracts.model.manifest import BlobRef
from services.contracts.store.artifact_store import ArtifactStore, check_file_names
from services.contracts.store.scratch import scratch_folder

_logger = logging.getLogger(__name__)

_STAGING = ".staging-"
# Of the file system that the cache is on.
_SHARE_OF_DISK = 0.25
# Between being handed out and being opened lies a build or a load.
_IN_USE_S = 3600.0


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
        if not _is_intact(target, ref):
            with scratch_folder(target.parent, _STAGING, abandoned=f"{_STAGING}*") as staging:
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
        entries = sorted(_entries(self._root))
        num_bytes = sum(each for _, each, _ in entries)
        for used_s, entry_bytes, path in entries:
            if num_bytes <= max_bytes or time.time() - used_s < _IN_USE_S:
                return
            _logger.info(
                "cached %s goes: %d bytes, the cache may have %d", path, num_bytes, max_bytes
            )
            _remove(path)
            num_bytes -= entry_bytes

    def _fill(self, target: Path, files: dict[str, BlobRef]) -> None:
        with scratch_folder(target.parent, _STAGING, abandoned=f"{_STAGING}*") as staging:
            new = staging / "new"
            new.mkdir()
            for name, ref in files.items():
                self._store.fetch_blob(ref, new / name)
            _put_in_place(new, target, staging / "damaged", files)


def _entries(root: Path) -> Iterator[tuple[float, int, Path]]:
    """When each folder and file was used last, its bytes and its path."""
    for place in ("folders", "files"):
        for path in (root / place).glob("[!.]*"):
            # Another process may evict too.
            with suppress(FileNotFoundError):
                files = [path, *path.rglob("*")] if path.is_dir() else [path]
                yield path.stat().st_mtime, sum(each.stat().st_size for each in files), path


def _remove(path: Path) -> None:
    if path.is_dir():
        # Under another name first: no reader may find a part of it.
        gone = path.with_name(f"{_STAGING}evicted-{path.name}")
        with suppress(OSError):
            path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


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
    return folder.is_dir() and all(_is_intact(folder / name, files[name]) for name in files)


def _is_intact(path: Path, ref: BlobRef) -> bool:
    if not (path.is_file() and path.stat().st_size == ref.num_bytes):
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == ref.sha256
