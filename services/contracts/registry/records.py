"""Documents in a store: read, listed, created once, numbered."""

import copy
import hashlib
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Self, TypeVar

from pydantic import ValidationError

from services.contracts.errors import AlreadyPublishedError, NotFoundError, StoreError
from services.contracts.model.document import Document
from services.contracts.store.artifact_store import ArtifactStore
from services.contracts.store.listing import Listing

_DocumentT = TypeVar("_DocumentT", bound=Document)
_NUMBERED = re.compile(r"(\d{6,})\.json")


# Passes come every few seconds: what none of them asked for in this time is wanted no more.
_KEPT_S = 600.0
_READS_AT_ONCE = 16


class DocumentCache:
    """Documents that were read lately, by key; safe to share between threads.

    Nothing in a store changes, so a document need not be read twice. What was not asked for in a
    while goes, so that a process of months does not hold every document there ever was.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is kept yet; `clock` gives monotonic seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        # The one that was asked for longest ago is first.
        self._kept: OrderedDict[str, tuple[float, Document, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def get(self, key: str) -> tuple[Document, str] | None:
        """A document that was kept, and the digest of its bytes; None when it is to be read."""
        with self._lock:
            found = self._kept.pop(key, None)
            if found is None:
                return None
            self._kept[key] = (self._clock(), *found[1:])
            return found[1:]

    def keep(self, key: str, document: Document, digest: str) -> None:
        """Keep a document, and drop those that nothing asked for in a while.

        Args:
            key: in the store.
            document: as parsed.
            digest: sha256 of the stored bytes, in hex.
        """
        with self._lock:
            now_s = self._clock()
            self._kept[key] = (now_s, document, digest)
            self._kept.move_to_end(key)
            while now_s - next(iter(self._kept.values()))[0] > _KEPT_S:
                self._kept.popitem(last=False)


class Records:
    """Typed documents over an ArtifactStore, with those that were read lately."""

    def __init__(
        self,
        store: ArtifactStore,
        cache: DocumentCache | None = None,
        listing: Listing | None = None,
    ) -> None:
        """Read documents of a store.

        Args:
            store: what holds the documents.
            cache: documents that were read before; a new one by default.
            listing: the store's keys at one moment; without it the store is listed for each
                question.
        """
        self._store = store
        self._listing = listing
        self._cache = DocumentCache() if cache is None else cache

    def listed(self, listing: Listing) -> "Records":
        """The same documents, with the keys that a listing has."""
        return Records(self._store, self._cache, listing)

    def keys(self, prefix: str) -> list[str]:
        """Keys below a prefix, sorted.

        Raises StoreError.
        """
        return self._listing.below(prefix) if self._listing else self._store.list(prefix)

    def numbers(self, prefix: str) -> list[int]:
        """Numbers of the revisions directly below a prefix, ascending."""
        return revision_numbers(self.keys(prefix), prefix)

    def revisions(self, prefix: str, document_type: type[_DocumentT]) -> list[_DocumentT]:
        """The documents of all revisions directly below a prefix, oldest first."""
        return [self.read(numbered_key(prefix, n), document_type) for n in self.numbers(prefix)]

    def read(self, key: str, document_type: type[_DocumentT]) -> _DocumentT:
        """A document; raises NotFoundError, or StoreError when it cannot be understood."""
        return self.read_hashed(key, document_type)[0]

    def read_hashed(self, key: str, document_type: type[_DocumentT]) -> tuple[_DocumentT, str]:
        """A document and the sha256 of its stored bytes; raises as `read` does."""
        document, digest = self._cache.get(key) or (None, "")
        if not isinstance(document, document_type):
            data = self._store.read(key)
            document = parsed(key, data, document_type)
            digest = hashlib.sha256(data).hexdigest()
            self._cache.keep(key, document, digest)
        return document, digest

    def prefetch(self, keys: Iterable[str], document_type: type[Document]) -> None:
        """Read several documents at once, so that reading each later takes no request.

        What cannot be read is left to its reader.
        """

        def fetch(some: list[str]) -> None:
            for key in some:
                with suppress(StoreError, NotFoundError):
                    self.read(key, document_type)

        unread = [key for key in keys if key not in self._cache]
        if unread:
            # One piece of work for each thread: a future for each key costs more than its read.
            shares = [unread[start::_READS_AT_ONCE] for start in range(_READS_AT_ONCE)]
            with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
                list(pool.map(fetch, shares))

    def create(self, key: str, document: Document) -> None:
        """Create a document; raises AlreadyPublishedError unless an equal one is there."""
        data = document.canonical_json()
        try:
            self._store.create(key, data)
        except AlreadyPublishedError:
            # Equal bytes: our own request, which the client repeated after a lost answer,
            # or another publisher of the very same fact.
            if self._store.read(key) != data:
                raise

    def append(self, prefix: str, document: Document) -> int:
        """Create a document under the next free number; returns the number."""
        number = max(self.numbers(prefix), default=0) + 1
        while True:
            try:
                self.create(numbered_key(prefix, number), document)
            except AlreadyPublishedError:
                number += 1
            else:
                return number


class RecordKeeper:
    """Base of what keeps documents and the blobs they name in one store."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._records = Records(store)

    def at_one_moment(self) -> Self:
        """The same, which lists each folder of the store once, at the first question about it."""
        return self._listed(Listing(self._store.list))

    def _listed(self, listing: Listing) -> Self:
        same = copy.copy(self)
        same._records = self._records.listed(listing)  # noqa: SLF001 - of this class
        return same


def parsed(key: str, data: bytes, document_type: type[_DocumentT]) -> _DocumentT:
    """A document from its stored bytes; raises StoreError when it cannot be understood.

    Args:
        key: in the store, for the message.
        data: the stored bytes.
        document_type: what they are to be.
    """
    try:
        return document_type.from_json(data)
    except ValidationError as error:
        fault = error.errors()[0]
        raise StoreError(
            f"'{key}' is not a {document_type.__name__} that this version of Smelt reads: "
            f"{'.'.join(map(str, fault['loc'])) or 'document'}: {fault['msg']}"
        ) from error


def numbered_key(prefix: str, number: int) -> str:
    """The key of one revision; padded so that names sort as numbers do."""
    return f"{prefix}{number:06d}.json"


def revision_numbers(keys: list[str], prefix: str) -> list[int]:
    """Numbers of the revisions directly below a prefix among these keys, ascending."""
    names = (key.removeprefix(prefix) for key in keys if key.startswith(prefix))
    return sorted(int(match[1]) for name in names if (match := _NUMBERED.fullmatch(name)))
