"""An issuer's public keys, read from a file or over https, and read again in time."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from joserfc.jwk import JWKRegistry, Key, KeySet

from services.contracts.errors import NotReadyError
from services.contracts.security.watched_file import Complaint

logger = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_MAX_BYTES = 1 << 20
# Anybody can send tokens with made-up key ids; the provider must not feel them.
_PAUSE_S = 10.0

Read = Callable[[str], bytes]


class IssuerKeys:
    """The keys of one issuer; use within one event loop."""

    def __init__(
        self,
        source: str,
        refresh_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        read: Read | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            source: https URL or path.
            refresh_s: after how long they are read again.
            clock: monotonic seconds.
            read: gives the source's bytes; blocks; raises OSError or HTTPException.
        """
        self._source = source
        self._refresh_s = refresh_s
        self._clock = clock
        self._read = read or read_source
        self._keys: KeySet | None = None
        self._ids: frozenset[str | None] = frozenset()
        self._complaint = Complaint(
            partial(logger.warning, "keys of an issuer are skipped, from %s: %s", source)
        )
        self._read_at_s = self._tried_at_s = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def with_id(self, key_id: str | None) -> KeySet:
        """The keys, with that one among them if the issuer has it by now.

        Raises:
            NotReadyError: the keys were never read, and cannot be read now.
        """
        is_unknown = self._keys is None or (key_id is not None and key_id not in self._ids)
        is_old = self._clock() - self._read_at_s > self._refresh_s
        if (is_unknown or is_old) and self._clock() - self._tried_at_s > _PAUSE_S:
            self._tried_at_s = self._clock()
            self._reading = asyncio.create_task(self._take(), name="read issuer keys")
        if self._reading is not None and (is_unknown or self._keys is None):
            # One reading for all who wait; a caller that leaves must not end it.
            await asyncio.shield(self._reading)
        if self._keys is None:
            raise NotReadyError(
                f"the keys of the token's issuer are not available from {self._source}; retry, "
                "or see the gateway's log"
            )
        return self._keys

    async def _take(self) -> None:
        try:
            document = json.loads(await asyncio.to_thread(self._read, self._source))
            self._keys = self._key_set(document)
        except Exception as error:
            # Whatever a source, its answer or the library does: it is no fault of the call that
            # waits, and keys that were good a moment ago are better than none.
            logger.warning("keys of an issuer cannot be read from %s: %r", self._source, error)
            return
        self._ids = frozenset(key.kid for key in self._keys)
        self._read_at_s = self._clock()

    def _key_set(self, document: Any) -> KeySet:
        """The keys that can be used; one that cannot must not cost the others (RFC 7517, 5)."""
        if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
            raise ValueError("expected a JSON object with a list of `keys`")
        keys = []
        faults = []
        for each in document["keys"]:
            try:
                keys.append(_public_key(each))
            except Exception as error:  # the library has no type for all that it raises
                faults.append(error)
        if not keys:
            raise ValueError(f"none of {len(faults)} keys can be used; first fault: {faults[:1]}")
        self._log_skipped(faults, len(document["keys"]))
        return KeySet(keys)

    def _log_skipped(self, faults: list[Exception], num_keys: int) -> None:
        if faults:
            self._complaint.make(f"{len(faults)} of {num_keys}; first fault: {faults[0]!r}")
        else:
            self._complaint.withdraw()


def read_source(source: str) -> bytes:
    """The bytes of a file or of an https answer, at most 1 MiB. Raises OSError or HTTPException."""
    if "://" not in source:
        return Path(source).read_bytes()
    request = Request(source, headers={"Accept": "application/json"})  # noqa: S310 - checked
    with urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - access_file.py checks it
        data: bytes = answer.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise OSError(f"expected at most {_MAX_BYTES} bytes of keys, got more")
    return data


def _public_key(key: Any) -> Key:
    if isinstance(key, dict) and key.get("kty") == "oct":
        # Secrets shared with the issuer would let this gateway, and a thief, sign in its name.
        raise ValueError("a shared secret, which is no public key")
    return JWKRegistry.import_key(key)
