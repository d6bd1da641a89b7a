"""The gate: from a request's metadata to the caller, with the access file kept fresh."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from services.contracts.errors import InvalidRequestError, UnauthenticatedError
from services.contracts.security.watched_file import Complaint, WatchedFile
from services.gateway.access.access_file import AccessDocument, TrustedIssuer
from services.gateway.access.caller import Caller
from services.gateway.access.jwks import IssuerKeys
from services.gateway.access.jwt_tokens import JwtTokens
from services.gateway.access.static_tokens import StaticTokens

logger = logging.getLogger(__name__)

HEADER: Final = "authorization"
_SCHEME: Final = "bearer"
# A token's signature takes a tenth of a millisecond to check; callers send the same one on.
_MAX_REMEMBERED: Final = 4096
Metadata = Iterable[tuple[str, str | bytes]]


class Gate:
    """Knows the callers. Use within one event loop."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Read the access file.

        Args:
            path: of the access file.
            clock: POSIX seconds.

        Raises:
            InvalidRequestError: it cannot be read, or a value is wrong.
        """
        self._file = WatchedFile(path)
        self._clock = clock
        self._complaint = Complaint(
            partial(logger.error, "access file rejected; keeping the previous one: %s")
        )
        self._keys: dict[tuple[str, float], IssuerKeys] = {}
        self._remembered: OrderedDict[str, Caller] = OrderedDict()
        try:
            self._take_over(self._read())
        except OSError as error:
            raise InvalidRequestError(
                f"access file {path} cannot be read: {error}; correct SMELT_GATEWAY_ACCESS_FILE"
            ) from error

    async def caller_of(self, metadata: Metadata) -> Caller:
        """The caller of a request.

        Raises:
            UnauthenticatedError: there is no token, or it is not valid.
            NotReadyError: the keys of the token's issuer are not available now.
        """
        self._refresh()
        token = _bearer_token(metadata)
        known = self._remembered.get(token)
        if known is not None and known.expires_at_s > self._clock():
            return known
        self._remembered.pop(token, None)
        signed = self._jwt
        caller = self._static.find(token) or await signed.caller_of(token)
        if self._jwt is not signed:
            return caller  # the file changed meanwhile, and what was read of it counts no more
        self._remembered[token] = caller
        if len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return caller

    def _refresh(self) -> None:
        if not self._file.has_changed():
            return
        try:
            self._take_over(self._read())
        except (InvalidRequestError, OSError) as error:
            self._complaint.make(str(error))
        else:
            self._complaint.withdraw()
            logger.info("access file %s was read again", self._file.path)

    def _read(self) -> AccessDocument:
        try:
            text = self._file.read().decode()
        except UnicodeDecodeError as error:
            raise InvalidRequestError(
                f"access file {self._file.path}: not UTF-8: {error}"
            ) from error
        return AccessDocument.from_yaml(text, str(self._file.path))

    def _take_over(self, document: AccessDocument) -> None:
        self._static = StaticTokens(document.tokens)
        self._jwt = JwtTokens(document.issuers, self._keys_of, self._clock)
        # A token that was withdrawn must not stay in memory.
        self._remembered.clear()

    def _keys_of(self, issuer: TrustedIssuer) -> IssuerKeys:
        """Keys outlive the file: it is changed far more often than they are."""
        place = (issuer.jwks, issuer.refresh_s)
        if place not in self._keys:
            self._keys[place] = IssuerKeys(*place)
        return self._keys[place]


def _bearer_token(metadata: Metadata) -> str:
    for key, value in metadata:
        if key == HEADER and isinstance(value, str):
            # gRPC's C++ keeps the space that a client writes after "authorization:".
            scheme, _, token = value.strip().partition(" ")
            if scheme.lower() == _SCHEME and token.strip():
                return token.strip()
            raise UnauthenticatedError(
                f"expected '{HEADER}: Bearer TOKEN', got another scheme than Bearer"
            )
    raise UnauthenticatedError(f"the request has no token; send metadata '{HEADER}: Bearer TOKEN'")
