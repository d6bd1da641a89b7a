"""Tokens that stand in the access file, each by its hash."""

import hashlib
import secrets
from collections.abc import Iterable

from services.gateway.access.access_file import StaticToken
from services.gateway.access.caller import Caller

_TOKEN_BYTES = 32


class StaticTokens:
    """Finds the owner of a token."""

    def __init__(self, tokens: Iterable[StaticToken]) -> None:
        """Of two entries with one hash, the first counts."""
        self._callers: dict[str, Caller] = {}
        for token in tokens:
            caller = Caller(name=token.name, grants=token.grants)
            self._callers.setdefault(token.sha256, caller)

    def find(self, token: str) -> Caller | None:
        """Whose token it is; None for an unknown one.

        The time of looking a hash up shows no more than how hashes begin, and of those no caller
        can choose the beginning.
        """
        return self._callers.get(token_hash(token))


def new_token() -> str:
    """256 random bits, as text that needs no quoting."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def token_hash(token: str) -> str:
    """What the access file keeps of a token."""
    return hashlib.sha256(token.encode()).hexdigest()
