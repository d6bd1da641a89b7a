"""The obstore store: which URLs it takes, what it refuses, what it costs."""

import subprocess
import sys
import threading
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError
from obstore.store import MemoryStore, S3Store

from services.contracts.errors import (
    AlreadyPublishedError,
    CorruptBlobError,
    InvalidRequestError,
    NotFoundError,
    StoreError,
    UnsafeStoreError,
)
from services.contracts.store.object_store import (
    ObstoreArtifactStore,
    open_store,
    verify_conditional_create,
)

MIB = 2**20


class OverwritingStore(ObstoreArtifactStore):
    """Ignores the condition of a create, as one S3 emulator does."""

    def create(self, key: str, data: bytes) -> None:
        """Overwrite."""
        obstore.put(self._backend, key, data)


class RacyStore(ObstoreArtifactStore):
    """Looks, then writes: right one at a time, wrong when eight look at once."""

    def __init__(self, backend: MemoryStore, name: str) -> None:
        super().__init__(backend, name)
        self.all_looked = threading.Barrier(8)

    def create(self, key: str, data: bytes) -> None:
        """Look, wait for the others to have looked, write."""
        if self.list("selftest/"):
            raise AlreadyPublishedError(key)
        self.all_looked.wait(timeout=60)
        obstore.put(self._backend, key, data)


class RefusingAfterWritingStore(ObstoreArtifactStore):
    """Says that the key exists, and overwrites it all the same."""

    def create(self, key: str, data: bytes) -> None:
        """Write, then refuse."""
        exists = bool(self.list("selftest/"))
        obstore.put(self._backend, key, data)
        if exists:
            raise AlreadyPublishedError(key)


@pytest.mark.parametrize("lying", [OverwritingStore, RacyStore, RefusingAfterWritingStore])
def test_a_store_that_lies_is_refused_by_name(lying: type[ObstoreArtifactStore]) -> None:
    with pytest.raises(UnsafeStoreError, match="store that lies"):
        verify_conditional_create(lying(MemoryStore(), "store that lies"))


def test_a_store_that_begins_to_lie_is_refused() -> None:
    backend = MemoryStore()
    verify_conditional_create(ObstoreArtifactStore(backend, "honest"))
    with pytest.raises(UnsafeStoreError, match="8 of 8 writers of one key succeeded"):
        verify_conditional_create(OverwritingStore(backend, "changed"))


def test_a_file_that_changes_while_it_is_published_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, head = tmp_path / "source", obstore.head

    def changing(backend: MemoryStore, key: str) -> object:
        source.write_bytes(b"B" * source.stat().st_size)
        return head(backend, key)

    # Between the digest and the upload the store is asked whether it has the blob.
    monkeypatch.setattr(obstore, "head", changing)
    for num_bytes in (10, 20 * MIB):
        source.write_bytes(b"A" * num_bytes)
        store = ObstoreArtifactStore(MemoryStore(), "memory")
        with pytest.raises(CorruptBlobError, match="changed while it was published"):
            store.put_blob(source)
        assert store.list("blobs/") == []


@pytest.mark.parametrize("url", ["http://host/path", "ftp://host/x", "redis://host"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(url: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"expected a folder, file://, memory:.*s3://"):
        open_store(url)


@pytest.mark.parametrize("url", ["s3:/bucket", "s3:bucket", "file:/folder", "memory:x", "gs:"])
def test_what_looks_like_a_url_is_never_made_as_a_folder(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequestError, match=rf"s3://.*if it is a folder, say \./{url}"):
        open_store(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file://host/folder", r"expected file:///FOLDER .*got host 'host' and path '/folder'"),
        ("file://folder", "got host 'folder' and path ''"),
        ("file://", "got host '' and path ''"),
        ("file://localhost", "got host 'localhost' and path ''"),
        ("file:///a?b", "say [?] as %3F"),
        ("file:///a#b", "and # as %23"),
    ],
)
def test_a_file_url_that_names_no_folder_of_this_machine_is_refused(
    url: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequestError, match=message):
        open_store(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("start", ["file://", "file://localhost"])
def test_a_file_url_names_a_whole_path(start: str, tmp_path: Path) -> None:
    open_store(f"{start}{tmp_path}/a%3Fb%20c").create("a.json", b"1")
    assert (tmp_path / "a?b c" / "a.json").read_bytes() == b"1"


def test_a_store_that_must_exist_is_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "mistyped"
    for url in (str(folder), f"file://{folder}"):
        with pytest.raises(NotFoundError, match=r"no store at .*/mistyped; .*smelt models add"):
            open_store(url, must_exist=True)
    assert not folder.exists()
    open_store(str(folder)).create("a.json", b"1")
    assert open_store(str(folder), must_exist=True).read("a.json") == b"1"


class FailingStore(ObstoreArtifactStore):
    """Fails as a cloud does."""

    def __init__(self, error: Exception) -> None:
        super().__init__(MemoryStore(), "store s3://bucket")
        self._error = error

    def read(self, key: str) -> bytes:
        with self._translated_errors(key):
            raise self._error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            GenericError("Error performing PUT http://169.254.169.254/latest/api/token: timeout"),
            "no credentials were found.*AWS_ACCESS_KEY_ID",
        ),
        (PermissionDeniedError("Access Denied"), "Access Denied; give credentials that may read"),
        (UnauthenticatedError("no token"), "no token; give credentials .*GOOGLE_SERVICE_ACCOUNT"),
    ],
)
def test_missing_credentials_are_named_with_how_to_give_them(error: Exception, told: str) -> None:
    with pytest.raises(StoreError, match=told):
        FailingStore(error).read("a.json")


def test_other_failures_say_nothing_of_credentials() -> None:
    with pytest.raises(StoreError, match="'a.json': disk on fire$"):
        FailingStore(GenericError("disk on fire")).read("a.json")


def test_google_and_azure_urls_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert open_store("gs://bucket/prefix").name == "store gs://bucket/prefix"
    assert open_store("az://container/prefix").name == "store az://container/prefix"


def test_a_url_that_lacks_something_says_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(InvalidRequestError, match="Account must be specified"):
        open_store("az://container/prefix")


def test_plain_http_is_refused_beyond_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.example")
    with pytest.raises(InvalidRequestError, match="set AWS_ALLOW_HTTP=true"):
        open_store("s3://bucket")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert open_store("s3://bucket").name == "store s3://bucket"


def test_a_failing_store_and_the_key_are_named() -> None:
    backend = S3Store("bucket", endpoint="http://store.example", region="us-east-1")
    store = ObstoreArtifactStore(backend, "s3://bucket")
    with pytest.raises(StoreError, match=r"^store s3://bucket failed at 'a/1\.json': .*[^\n]$"):
        store.read("a/1.json")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match=r"file/store cannot be made"):
        open_store(str(tmp_path / "file" / "store"))


def test_keys_cannot_leave_the_folder(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    with pytest.raises(StoreError, match="failed at"):
        store.create("../outside.json", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_large_blobs_do_not_pass_through_memory_whole(tmp_path: Path) -> None:
    """192 MiB in and out under a limit of the memory that the process may add."""
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(192 * MIB)
    code = (
        "import sys, resource; from pathlib import Path\n"
        "from services.contracts.store.object_store import open_store\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "store = open_store(sys.argv[1])\n"
        "store.fetch_blob(store.put_blob(Path(sys.argv[2])), Path(sys.argv[3]))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    command = [sys.executable, "-c", code, tmp_path / "store", source, tmp_path / "target"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown_bytes = int(done.stdout) * 1024
    assert (tmp_path / "target").stat().st_size == 192 * MIB
    assert grown_bytes < 120 * MIB, f"grew by {grown_bytes} bytes"
