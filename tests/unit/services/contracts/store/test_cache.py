"""The file cache: one fetch, whole folders, several processes, damage."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from obstore.store import LocalStore

from services.contracts.errors import CorruptBlobError
from services.contracts.model.manifest import BlobRef
from services.contracts.store.cache import FileCache
from services.contracts.store.object_store import ObstoreArtifactStore

CHILD = """
import sys
from pathlib import Path
from services.contracts.store.cache import FileCache
from services.contracts.model.manifest import BlobRef
from services.contracts.store.object_store import open_store
store, cache, *refs = sys.argv[1:]
files = {f"f{n}": BlobRef.from_json(ref.encode()) for n, ref in enumerate(refs)}
sys.stdin.read(1)
print(FileCache(open_store(store), Path(cache)).folder(files))
"""
KILLED = """
import os, signal, sys
from pathlib import Path
from services.contracts.store.cache import FileCache
from services.contracts.model.manifest import BlobRef
from services.contracts.store.object_store import open_store
store, cache, ref = sys.argv[1:]
files = FileCache(open_store(store), Path(cache))
# What is fetched stands under another name until it is whole.
Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
files.file(BlobRef.from_json(ref.encode()), ".npz")
"""


class CountingStore(ObstoreArtifactStore):
    """Counts fetches."""

    num_fetches = 0

    def fetch_blob(self, ref: BlobRef, target: Path) -> None:
        """Fetch and count."""
        self.num_fetches += 1
        super().fetch_blob(ref, target)


@pytest.fixture
def backend(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store", mkdir=True)


@pytest.fixture
def store(backend: LocalStore) -> CountingStore:
    return CountingStore(backend, "counting")


@pytest.fixture
def files(store: CountingStore, tmp_path: Path) -> dict[str, BlobRef]:
    refs = {}
    for number in range(3):
        (tmp_path / "source").write_bytes(bytes([number]) * (2 * 2**20))
        refs[f"f{number}"] = store.put_blob(tmp_path / "source")
    return refs


@pytest.fixture
def cache(store: CountingStore, tmp_path: Path) -> FileCache:
    return FileCache(store, tmp_path / "cache")


def test_a_second_call_fetches_nothing(
    cache: FileCache, store: CountingStore, files: dict[str, BlobRef]
) -> None:
    assert cache.folder(files) == cache.folder(files)
    assert store.num_fetches == 3


def test_folders_with_other_bytes_or_names_are_other_folders(
    cache: FileCache, files: dict[str, BlobRef]
) -> None:
    swapped = {**files, "f0": files["f1"]}
    renamed = {f"sub/{name}": ref for name, ref in files.items()}
    assert len({cache.folder(each) for each in (files, swapped, renamed)}) == 3
    assert (cache.folder(renamed) / "sub" / "f0").read_bytes()[:1] == b"\0"


def test_a_damaged_folder_is_fetched_again(
    cache: FileCache, files: dict[str, BlobRef], caplog: pytest.LogCaptureFixture
) -> None:
    folder = cache.folder(files)
    same_size = b"\3" * (2 * 2**20)
    for damage in (
        (folder / "f1").unlink,
        lambda: (folder / "f2").write_bytes(b"short"),
        lambda: (folder / "f2").write_bytes(same_size),
    ):
        damage()
        assert cache.folder(files) == folder
        assert (folder / "f1").read_bytes() == b"\1" * (2 * 2**20)
        assert (folder / "f2").read_bytes() == b"\2" * (2 * 2**20)
    assert "damaged" in caplog.text
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_corrupt_blob_makes_no_folder(
    cache: FileCache, files: dict[str, BlobRef], tmp_path: Path
) -> None:
    (tmp_path / "store" / "blobs" / "sha256" / files["f2"].sha256).write_bytes(b"evil")
    with pytest.raises(CorruptBlobError, match=files["f2"].sha256):
        cache.folder(files)
    assert list((tmp_path / "cache" / "folders").iterdir()) == []


def test_the_loser_of_a_race_uses_the_winners_folder(
    store: CountingStore, backend: LocalStore, files: dict[str, BlobRef], tmp_path: Path
) -> None:
    winner = FileCache(store, tmp_path / "cache")

    class OvertakenStore(CountingStore):
        """Another process fills the same folder while this one fetches."""

        def fetch_blob(self, ref: BlobRef, target: Path) -> None:
            """Be overtaken, then fetch."""
            winner.folder(files)
            super().fetch_blob(ref, target)

    loser = FileCache(OvertakenStore(backend, "overtaken"), tmp_path / "cache")
    folder = loser.folder(files)
    assert folder == winner.folder(files)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_processes_that_need_one_folder_at_once_all_get_it(
    files: dict[str, BlobRef], tmp_path: Path
) -> None:
    refs = [ref.canonical_json().decode() for ref in files.values()]
    command = [sys.executable, "-c", CHILD, tmp_path / "store", tmp_path / "cache", *refs]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for child in children:  # each waits for its byte with everything imported
        assert child.stdin is not None
        child.stdin.write("x")
        child.stdin.flush()
    folders = {child.communicate(timeout=120)[0] for child in children}
    assert [child.returncode for child in children] == [0] * 4
    folder = Path(folders.pop().strip())
    assert not folders
    assert sorted(path.name for path in folder.iterdir()) == ["f0", "f1", "f2"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_fetcher_of_one_file_that_is_killed_leaves_only_what_the_next_one_removes(
    cache: FileCache, files: dict[str, BlobRef], tmp_path: Path
) -> None:
    ref = files["f0"].canonical_json().decode()
    command = [sys.executable, "-c", KILLED, tmp_path / "store", tmp_path / "cache", ref]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (left,) = (tmp_path / "cache" / "files").iterdir()
    assert list(left.iterdir())  # what was fetched
    os.utime(left, (0, 0))
    whole = cache.file(files["f0"], ".npz")
    assert list(whole.parent.iterdir()) == [whole]
    assert whole.read_bytes() == b"\0" * (2 * 2**20)


@pytest.mark.parametrize("place", ["folders", "files"])
def test_what_a_killed_fetcher_left_is_removed(
    cache: FileCache, files: dict[str, BlobRef], tmp_path: Path, place: str
) -> None:
    folders = tmp_path / "cache" / place
    left, held = folders / ".staging-left", folders / ".staging-held"
    kept = folders / "whole"
    for folder in (left, held, kept):
        folder.mkdir(parents=True)
        (folder / "part").write_bytes(b"x")
        os.utime(folder, (0, 0))
    lock = os.open(held, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # somebody fetches into it
        cache.folder(files)
        cache.file(files["f0"], ".npz")
        assert not left.exists()
        assert held.exists()
        assert kept.exists()
    finally:
        os.close(lock)


def test_what_was_not_used_for_longest_goes_when_the_cache_is_full(
    store: CountingStore, files: dict[str, BlobRef], tmp_path: Path
) -> None:
    room = FileCache(store, tmp_path / "cache", max_bytes=5 * 2**20)
    one = {name: room.folder({name: ref}) for name, ref in list(files.items())[:2]}
    two_hours_ago = time.time() - 7200
    for age_s, folder in zip((100, 0), one.values(), strict=True):
        os.utime(folder, (two_hours_ago - age_s,) * 2)
    third = room.file(files["f2"], ".npz")
    assert [path.exists() for path in (*one.values(), third)] == [False, True, True]
    assert sorted(path.name for path in third.parent.parent.rglob(".*")) == []


def test_what_was_used_within_the_hour_stays_also_when_the_cache_is_full(
    store: CountingStore, files: dict[str, BlobRef], tmp_path: Path
) -> None:
    room = FileCache(store, tmp_path / "cache", max_bytes=1)
    kept = [room.folder({name: ref}) for name, ref in files.items()]
    assert all(path.exists() for path in kept)


def test_a_use_counts_as_one_though_nothing_is_fetched(
    store: CountingStore, files: dict[str, BlobRef], tmp_path: Path
) -> None:
    room = FileCache(store, tmp_path / "cache", max_bytes=1)
    (name, ref), *_, (_, last) = files.items()
    folder = room.folder({name: ref})
    os.utime(folder, (0, 0))
    room.folder({name: ref})
    room.file(last, ".npz")
    assert folder.exists()
