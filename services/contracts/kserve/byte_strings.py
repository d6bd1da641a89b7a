"""BYTES tensors: each string after its length on the wire, an array of `str` in a process.

ONNX's strings are UTF-8, and its runtimes take Python's `str`. They take other objects as well,
and compute with what those look like in print: so only `str` gets through here.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from services.contracts.errors import InvalidRequestError

BYTES: Final = "BYTES"
STRING_DTYPE: Final = np.dtype(np.object_)
# Of one tensor in a request: each becomes an object, all of them in some 0.5 s, while other
# requests wait.
MAX_STRINGS: Final = 1_000_000
_LENGTH = struct.Struct("<I")
_Strings = NDArray[Any]


def check_num_strings(where: str, shape: Sequence[int]) -> None:
    """Refuse a BYTES tensor that is too large for a request, by its shape alone.

    Raises:
        InvalidRequestError: with the number of strings found and the number allowed.
    """
    if (num := math.prod(shape)) > MAX_STRINGS:
        raise InvalidRequestError(
            f"{where}: shape {list(shape)} has {num} strings, at most {MAX_STRINGS} are taken "
            "at once; send less of them in a request"
        )


def strings_from_bytes(data: bytes | memoryview, shape: Sequence[int]) -> _Strings:
    """Read each string after its length, 4 bytes little-endian; the array is read-only.

    Raises:
        InvalidRequestError: the bytes end within a string or before the last one, go on after
            it, or are not UTF-8; says at which element.
    """
    # One copy; to slice a view costs three times as much, for each string.
    raw = bytes(data)
    num = math.prod(shape)
    # Before anything is made of them: a shape can promise more than any message brings.
    if len(raw) < num * _LENGTH.size:
        raise InvalidRequestError(
            f"expected {num} strings for BYTES {list(shape)}, each after {_LENGTH.size} bytes "
            f"of length, got {len(raw)} bytes"
        )
    elements, at = _elements(raw, num, f"BYTES {list(shape)}")
    if at != len(raw):
        raise InvalidRequestError(
            f"expected {num} strings for BYTES {list(shape)}, got {len(raw) - at} bytes more"
        )
    return strings_from_elements(elements, shape)


def _elements(raw: bytes, num: int, what: str) -> tuple[list[bytes], int]:
    """The first elements, and where they end."""
    elements = []
    at = 0
    length_at = _LENGTH.unpack_from
    for element in range(num):
        begin = at + _LENGTH.size
        if begin > len(raw):
            raise InvalidRequestError(
                f"expected {num} strings for {what}, got {element}: the {len(raw) - at} bytes "
                f"after them hold no length of {_LENGTH.size} bytes"
            )
        at = begin + length_at(raw, at)[0]
        if at > len(raw):
            raise InvalidRequestError(
                f"element {element} of {what}: expected {at - begin} bytes as its length says, "
                f"got {len(raw) - begin}"
            )
        elements.append(raw[begin:at])
    return elements, at


def strings_from_elements(elements: Sequence[bytes], shape: Sequence[int]) -> _Strings:
    """An array of as many strings as the shape has; raises InvalidRequestError: no UTF-8."""
    at = 0
    try:
        texts = []
        for element in elements:
            texts.append(element.decode())
            at += 1
    except UnicodeDecodeError as error:
        raise _not_utf8(error, at) from error
    array = _shaped(texts, shape)
    array.flags.writeable = False
    return array


def bytes_from_strings(array: _Strings) -> bytes:
    """Each string after its length, row-major.

    Raises:
        InvalidRequestError: an element is no string, or has no form in UTF-8.
    """
    try:
        encoded = [text.encode() for text in array.ravel().tolist()]
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidRequestError(
            f"expected strings that have a form in UTF-8, got one that has none: {error}"
        ) from error
    length = _LENGTH.pack
    return b"".join([piece for text in encoded for piece in (length(len(text)), text)])


def strings_from_array(array: _Strings) -> _Strings:
    """What numpy holds as text or bytes, as an array of `str`; others come back as they are.

    Raises:
        InvalidRequestError: bytes that are not UTF-8, or an object that is no text.
    """
    if array.dtype.kind not in "USO":
        return array
    texts = [_plain(each, at) for at, each in enumerate(array.ravel().tolist())]
    return _shaped(texts, array.shape)


def check_strings(name: str, array: _Strings) -> None:
    """Refuse an array of objects that are not all `str`.

    Raises:
        InvalidRequestError: names the element and its type.
    """
    for at, text in enumerate(array.ravel().tolist()):
        if type(text) is not str:
            raise InvalidRequestError(
                f"input '{name}': element {at} is {type(text).__name__}, expected str"
            )


def _plain(element: object, at: int) -> str:
    if isinstance(element, str):
        return str(element)
    if not isinstance(element, bytes):
        raise InvalidRequestError(f"element {at}: expected text, got {type(element).__name__}")
    try:
        return element.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(error, at) from error


def _not_utf8(error: UnicodeDecodeError, at: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"element {at}: expected UTF-8, as the model's strings are, got byte "
        f"{error.object[error.start]:#04x} at {error.start} ({error.reason}); send other bytes "
        "as UINT8, or as text of theirs (base64)"
    )


def _shaped(strings: list[str], shape: Sequence[int]) -> _Strings:
    array: _Strings = np.empty(math.prod(shape), dtype=STRING_DTYPE)
    array[:] = strings
    return array.reshape(shape)
