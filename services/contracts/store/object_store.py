"""The artifact store on obstore: a local folder, memory, S3, GCS and Azure with one meaning.

Objects are written with a conditional create, blobs by plain puts under their own digest.
A local folder writes `<name>#<n>` and then links or renames it, so a killed writer leaves at
most such a file, which no listing shows; power loss is caught by the digest on reading.
"""

import hashlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import LocalStore, MemoryStore, ObjectStore, S3Store, from_url

from services.contracts.errors import (
    AlreadyPublishedError,
    CorruptBlobError,
    InvalidRequestError,
    NotFoundError,
    StoreError,
    UnsafeStoreError,
)
from services.contracts.model.manifest import BlobRef
from services.contracts.process.settings import ProcessSettings
from services.contracts.store.artifact_store import ArtifactStore, StoredObject
from services.contracts.store.store_url import store_folder, store_scheme

# Where clouds keep the credentials of a machine's role; asked only when no others are given.
_ROLE_HOSTS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")

# What is younger is never pruned.
SAFE_AGE = timedelta(hours=12)
_CHUNK_BYTES = 8 * 2**20  # S3 allows 10,000 parts: blobs up to 80 GB
_MAX_PARTS_IN_FLIGHT = 4  # bounds the memory of one upload to 32 MiB
SELF_TEST_KEY = "selftest/conditional-create"
_SELF_TEST_WRITERS = 8
_CLOUD_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
_LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


class _S3Environment(ProcessSettings):
    """What Smelt itself must know of the standard AWS environment; obstore reads the rest."""

    aws_endpoint_url: str = ""
    aws_allow_http: bool = False


class ObstoreArtifactStore:
    """ArtifactStore over any store of obstore; safe to share between threads.

    Attributes:
        url: opens it, from any folder of this host.
        name: the store in words, for messages.
    """

    def __init__(self, backend: ObjectStore, url: str) -> None:
        self._backend = backend
        self.url = url
        self.name = f"store {url}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def put_blob(self, source: Path) -> BlobRef:
        """Store a file's bytes under their digest; does nothing when they were put lately.

        Raises:
            CorruptBlobError: the file changed while it was read; nothing was stored.
            StoreError: the store failed.
        """
        ref = BlobRef.of(source)
        key = _blob_key(ref)
        if self._is_kept(key, ref):
            return ref
        with source.open("rb") as file:
            parts = _verified_parts(file, ref, str(source))
            with self._translated_errors(key):
                if ref.num_bytes <= _CHUNK_BYTES:
                    # One request in place of the three of a multipart upload.
                    obstore.put(self._backend, key, b"".join(parts))
                else:
                    obstore.put(
                        self._backend,
                        key,
                        parts,
                        chunk_size=_CHUNK_BYTES,
                        max_concurrency=_MAX_PARTS_IN_FLIGHT,
                    )
        return ref

    def fetch_blob(self, ref: BlobRef, target: Path) -> None:
        """Write a blob to a file, whole or not at all.

        Raises:
            NotFoundError: no such blob.
            CorruptBlobError: the bytes do not have that digest; the file is not written.
            StoreError: the store failed.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        # A name of our own, then a rename: readers and other fetchers never see a part.
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with temporary.open("xb") as file:
                self._copy_verified(ref, file)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def create(self, key: str, data: bytes) -> None:
        """Create an object; raises AlreadyPublishedError when the key exists."""
        with self._translated_errors(key):
            # Multipart has no conditional form: obstore sends a create as one request.
            obstore.put(self._backend, key, data, mode="create")

    def read(self, key: str) -> bytes:
        """Read an object; raises NotFoundError."""
        with self._translated_errors(key):
            return bytes(obstore.get(self._backend, key).bytes())

    def delete(self, key: str) -> None:
        """Remove an object, if it is there; raises StoreError where that is not allowed."""
        with suppress(NotFoundError), self._translated_errors(key):
            obstore.delete(self._backend, key)

    def objects(self, prefix: str) -> tuple[StoredObject, ...]:
        """All objects below a prefix that ends with '/', by key, with their sizes and times."""
        with self._translated_errors(prefix):
            chunks = obstore.list(self._backend, prefix, chunk_size=1000)
            found = sorted(
                StoredObject(meta["path"], meta["size"], meta["last_modified"])
                for chunk in chunks
                for meta in chunk
            )
        return tuple(found)

    def list(self, prefix: str) -> list[str]:
        """Keys of all objects below a prefix that ends with '/', sorted."""
        with self._translated_errors(prefix):
            chunks = obstore.list(self._backend, prefix, chunk_size=1000)
            return sorted(meta["path"] for chunk in chunks for meta in chunk)

    def _is_kept(self, key: str, ref: BlobRef) -> bool:
        """Whether a blob is there and will be.

        An old one is written anew: it may be named by nothing yet, and pruned at this moment.
        """
        try:
            with self._translated_errors(key):
                found = obstore.head(self._backend, key)
        except NotFoundError:
            return False
        age = datetime.now(UTC) - found["last_modified"]
        return found["size"] == ref.num_bytes and age < SAFE_AGE

    def _copy_verified(self, ref: BlobRef, file: BinaryIO) -> None:
        digest = hashlib.sha256()
        for chunk in self._chunks(_blob_key(ref)):
            digest.update(chunk)
            file.write(chunk)
        if (digest.hexdigest(), file.tell()) != (ref.sha256, ref.num_bytes):
            raise CorruptBlobError(
                f"blob {ref.sha256} in {self.name}: expected {ref.num_bytes} bytes of that "
                f"digest, got {file.tell()} bytes of digest {digest.hexdigest()}; delete that "
                "blob and publish it again"
            )

    def _chunks(self, key: str) -> Iterator[memoryview]:
        # Only the store's own faults are translated: a full disk at the target is not one.
        with self._translated_errors(key):
            stream = iter(obstore.get(self._backend, key).stream(min_chunk_size=_CHUNK_BYTES))
        while True:
            with self._translated_errors(key):
                chunk = next(stream, None)
            if chunk is None:
                return
            yield memoryview(chunk)

    @contextmanager
    def _translated_errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except AlreadyExistsError as error:
            raise AlreadyPublishedError(f"'{key}' exists already in {self.name}") from error
        except FileNotFoundError as error:
            raise NotFoundError(f"'{key}' does not exist in {self.name}") from error
        except (BaseError, OSError, ValueError) as error:
            raise StoreError(f"{self.name} failed at '{key}': {fault_words(error)}") from error


def open_store(url: str, *, must_exist: bool = False) -> ObstoreArtifactStore:
    """Open a store: a folder path or file:// URL, `memory:`, s3://, gs:// or az:// URL.

    Credentials, region and endpoint come from the provider's standard environment
    (AWS_*, GOOGLE_*, AZURE_*). Opening does not test the store: see
    `open_tested_store`.

    Args:
        url: the store.
        must_exist: refuse a folder that is not there instead of making it.

    Raises:
        InvalidRequestError: the URL has another scheme, lacks something, or is a folder of
            another host.
        NotFoundError: the folder must exist and does not.
        StoreError: the folder cannot be made.
    """
    if url == "memory:":
        return ObstoreArtifactStore(MemoryStore(), url)
    if folder := store_folder(url):
        return _open_folder(folder, must_exist=must_exist)
    scheme = store_scheme(url)
    if scheme not in _CLOUD_SCHEMES:
        raise InvalidRequestError(
            f"store '{url}': expected a folder, file://, memory:, or one of "
            f"{', '.join(f'{known}://' for known in _CLOUD_SCHEMES)}"
            + ("" if scheme else f"; if it is a folder, say ./{url}")
        )
    try:
        backend = _open_s3(url) if scheme in ("s3", "s3a") else from_url(url)
    except (BaseError, ValueError) as error:
        fault = str(error).partition("\n")[0]
        raise InvalidRequestError(f"store '{url}' cannot be opened: {fault}") from error
    return ObstoreArtifactStore(backend, url)


def open_tested_store(url: str, *, must_exist: bool = False) -> ObstoreArtifactStore:
    """Open a store that this process may trust; raises as the two steps of it do."""
    store = open_store(url, must_exist=must_exist)
    verify_conditional_create(store)
    return store


def verify_conditional_create(store: ArtifactStore) -> None:
    """Prove that a create never overwrites, also under a race; cheap enough for each start.

    It leaves one small object, always the same, so that no permission to delete is needed.

    Raises:
        UnsafeStoreError: the store let a second create succeed or changed what was there.
    """
    before = _read_or_none(store)
    # No two stores hold the same: it is also what a store is known by (`identity.py`).
    offers = [f"writer {n}, {uuid.uuid4().hex}".encode() for n in range(_SELF_TEST_WRITERS)]
    with ThreadPoolExecutor(_SELF_TEST_WRITERS) as pool:
        won = list(pool.map(lambda offer: _try_create(store, offer), offers))
    winners = [offer for offer, has_won in zip(offers, won, strict=True) if has_won]
    is_repeat_refused = not _try_create(store, b"late writer")
    after = store.read(SELF_TEST_KEY)
    # No winner and nothing before: another process raced us and won.
    allowed = [before] if before is not None else winners[:1] or [after]
    max_winners = 0 if before is not None else 1
    if len(winners) > max_winners or not is_repeat_refused or after not in allowed:
        raise UnsafeStoreError(
            f"{store!r} overwrites on create: {len(winners)} of {_SELF_TEST_WRITERS} writers of "
            f"one key succeeded, expected at most {max_winners}, and a later create was "
            f"{'refused' if is_repeat_refused else 'accepted'}. Use a store that honours "
            "If-None-Match on PUT, or a local folder"
        )


def _open_folder(root: Path, *, must_exist: bool) -> ObstoreArtifactStore:
    if must_exist and not root.is_dir():
        raise NotFoundError(
            f"no store at {root}; `smelt up` or `smelt models add` makes one, --store names another"
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"store folder {root} cannot be made: {error.strerror}") from error
    return ObstoreArtifactStore(LocalStore(root), str(root))


def _open_s3(url: str) -> S3Store:
    environment = _S3Environment()
    endpoint = urlsplit(environment.aws_endpoint_url)
    if endpoint.scheme != "http" or environment.aws_allow_http:
        return S3Store.from_url(url)
    if endpoint.hostname not in _LOOPBACK_HOSTS:
        raise InvalidRequestError(
            f"store '{url}': the endpoint {environment.aws_endpoint_url} is not encrypted and not "
            "on this machine; use https, or set AWS_ALLOW_HTTP=true on a network you trust"
        )
    return S3Store.from_url(url, client_options={"allow_http": True})


def _blob_key(ref: BlobRef) -> str:
    return f"blobs/sha256/{ref.sha256}"


def _verified_parts(file: BinaryIO, ref: BlobRef, source: str) -> Iterator[bytes]:
    """Read a file in parts; raise before the upload ends when it is not what was hashed."""
    digest = hashlib.sha256()
    while part := file.read(_CHUNK_BYTES):
        digest.update(part)
        yield part
    if digest.hexdigest() != ref.sha256:
        raise CorruptBlobError(f"{source} changed while it was published; publish it again")


def _read_or_none(store: ArtifactStore) -> bytes | None:
    try:
        return store.read(SELF_TEST_KEY)
    except NotFoundError:
        return None


def _try_create(store: ArtifactStore, data: bytes) -> bool:
    try:
        store.create(SELF_TEST_KEY, data)
    except AlreadyPublishedError:
        return False
    return True


def fault_words(error: Exception) -> str:
    """What happened, in one line, with the fix where that is known."""
    # obstore appends pages of its internals; the first line has what happened.
    fault = str(error).partition("\n")[0]
    is_refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    if any(host in fault for host in _ROLE_HOSTS):
        fault = f"no credentials were found, and this machine has no role ({fault})"
    elif not is_refused:
        return fault
    return (
        f"{fault}; give credentials that may read and write there: for s3:// AWS_ACCESS_KEY_ID "
        "and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN with temporary ones, AWS_REGION, "
        "AWS_ENDPOINT_URL), for gs:// GOOGLE_SERVICE_ACCOUNT, for az:// AZURE_STORAGE_ACCOUNT_KEY"
    )
