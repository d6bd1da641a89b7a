"""JSON documents of requests, and their fields, each of the type that it should have."""

import json
from typing import Any, Final, TypeVar

from services.contracts.errors import InvalidRequestError

# Parsing holds up all other requests, for some 0.1 s, and takes up to twenty times as much memory.
MAX_JSON_BYTES: Final = 8 << 20
# As many as fit in it would take seconds; characters of strings are counted with them.
_MOST_VALUES: Final = 1 << 21
_MOST_PARTS: Final = 1 << 19
Document = dict[str, Any]
T = TypeVar("T")
_NAMES: Final = {
    dict: "an object",
    list: "an array",
    str: "a string",
    int: "an integer",
    bool: "a boolean",
}


def document_from_json(raw: bytes) -> Document:
    """A JSON object; raises InvalidRequestError for anything else."""
    if len(raw) > MAX_JSON_BYTES:
        raise InvalidRequestError(
            f"JSON of {len(raw)} bytes: at most {MAX_JSON_BYTES} are read; send tensors in binary"
        )
    _check_counts(raw)
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the request is not JSON: {error}") from error
    return checked(document, dict, "the request")


def _check_counts(raw: bytes) -> None:
    if len(raw) <= _MOST_PARTS:
        return
    num_values = raw.count(b",")
    num_parts = raw.count(b"[") + raw.count(b"{") + raw.count(b":")
    if num_values > _MOST_VALUES or num_parts > _MOST_PARTS:
        raise InvalidRequestError(
            f"JSON with {num_values} commas and {num_parts} of '[', '{{' and ':': at most "
            f"{_MOST_VALUES} and {_MOST_PARTS} are read; send less at once, or tensors in binary"
        )


def checked(value: object, kind: type[T], what: str) -> T:
    """A value that has to be of a type.

    Args:
        value: of JSON.
        kind: of Python's.
        what: it is, for the error.

    Raises:
        InvalidRequestError: it is of another type.
    """
    if type(value) is not kind:
        found = "nothing" if value is None else type(value).__name__
        raise InvalidRequestError(f"{what}: expected {_NAMES[kind]}, got {found}")
    return value


def field(document: Document, key: str, kind: type[T]) -> T:
    """A field that has to be there and of that type; see `checked`."""
    return checked(document.get(key), kind, key)


def optional(document: Document, key: str, default: T) -> T:
    """A field of the default's type, or the default; see `checked`."""
    value = document.get(key)
    return default if value is None else checked(value, type(default), key)
