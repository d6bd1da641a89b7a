"""Published files on this machine's disk: fetched once, verified, shared by processes.

A folder is named by the digests of its files, so a cache may outlive its store and serve
several; it appears by one rename, so whoever sees it sees all of it. Digests are compared
at each use: a proof is about bytes, and these may have changed since they were fetched.
"""

import hashlib
import logging
from pathlib import Path

from services.contracts.document import canonical_json
from services.contracts.manifest import BlobRef
from services.contracts.scratch import scratch_folder
from services.contracts.store import ArtifactStore, check_file_names

_logger = logging.getLogger(__name__)

_STAGING = ".staging-"


class FileCache:
    """Materialises blobs of a store below one folder."""

    def __init__(self, store: ArtifactStore, root: Path) -> None:
        self._store = store
        self._root = root

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
        return target

    def file(self, ref: BlobRef, suffix: str) -> Path:
        """One blob as a file; raises as `folder` does."""
        target = self._root / "files" / f"{ref.sha256}{suffix}"
        if not _is_intact(target, ref):
            with scratch_folder(target.parent, _STAGING, abandoned=f"{_STAGING}*") as staging:
                # Not straight to its place: what a killed fetcher leaves there, nobody removes.
                self._store.fetch_blob(ref, staging / target.name)
                (staging / target.name).replace(target)
        return target

    def _fill(self, target: Path, files: dict[str, BlobRef]) -> None:
        with scratch_folder(target.parent, _STAGING, abandoned=f"{_STAGING}*") as staging:
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
    return folder.is_dir() and all(_is_intact(folder / name, files[name]) for name in files)


def _is_intact(path: Path, ref: BlobRef) -> bool:
    if not (path.is_file() and path.stat().st_size == ref.num_bytes):
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == ref.sha256
