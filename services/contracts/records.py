"""Documents in a store: read, listed, created once, numbered."""

import re
from typing import TypeVar

from pydantic import ValidationError

from services.contracts.document import Document
from services.contracts.errors import AlreadyPublishedError, StoreError
from services.contracts.store import ArtifactStore

_DocumentT = TypeVar("_DocumentT", bound=Document)
_NUMBERED = re.compile(r"(\d{6,})\.json")


class Records:
    """Typed documents over an ArtifactStore; what was read once is kept, as nothing changes."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._bytes_by_key: dict[str, bytes] = {}
        self._document_by_key: dict[str, Document] = {}

    def keys(self, prefix: str) -> list[str]:
        """Keys below a prefix, sorted."""
        return self._store.list(prefix)

    def numbers(self, prefix: str) -> list[int]:
        """Numbers of the revisions directly below a prefix, ascending."""
        return revision_numbers(self._store.list(prefix), prefix)

    def read_bytes(self, key: str) -> bytes:
        """A document's stored bytes; raises NotFoundError."""
        if key not in self._bytes_by_key:
            self._bytes_by_key[key] = self._store.read(key)
        return self._bytes_by_key[key]

    def read(self, key: str, document_type: type[_DocumentT]) -> _DocumentT:
        """A document; raises NotFoundError, or StoreError when it cannot be understood."""
        known = self._document_by_key.get(key)
        if isinstance(known, document_type):
            return known
        document = parsed(key, self.read_bytes(key), document_type)
        self._document_by_key[key] = document
        return document

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


def parsed(key: str, data: bytes, document_type: type[_DocumentT]) -> _DocumentT:
    """A document from its stored bytes; raises StoreError when it cannot be understood."""
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
