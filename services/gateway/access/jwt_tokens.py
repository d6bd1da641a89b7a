"""Tokens that an identity provider signed (JWT, RFC 7519; keys by JWKS, RFC 7517)."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from joserfc import jws, jwt

from services.contracts.errors import UnauthenticatedError
from services.gateway.access.access_file import TrustedIssuer
from services.gateway.access.caller import Caller
from services.gateway.access.jwks import IssuerKeys

# Signatures that only the issuer can make, checked with a public key; never `none` or HMAC.
_ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)


class JwtTokens:
    """Accepts tokens that trusted issuers signed."""

    def __init__(
        self,
        issuers: Iterable[TrustedIssuer],
        make_keys: Callable[[TrustedIssuer], IssuerKeys],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Trust some issuers.

        Args:
            issuers: whose tokens are accepted, with what these must contain.
            make_keys: gives the public keys of an issuer.
            clock: POSIX seconds, which expiry is compared with.
        """
        self._issuers = {each.issuer: (each, make_keys(each)) for each in issuers}
        self._clock = clock

    async def caller_of(self, token: str) -> Caller:
        """Whose token it is.

        Raises:
            UnauthenticatedError: it is not valid; with the reason.
            NotReadyError: its issuer's keys are not available now.
        """
        header, claims = _unproven(token)
        if (known := self._issuers.get(str(claims.get("iss")))) is None:
            raise UnauthenticatedError("the token's issuer (`iss`) is not trusted here")
        issuer, keys = known
        key_id = header.get("kid")
        if key_id is not None and not isinstance(key_id, str):
            raise UnauthenticatedError("the token is not valid: its key id (`kid`) is no text")
        key_set = await keys.with_id(key_id)
        try:
            proven = jwt.decode(token, key_set, algorithms=_ALGORITHMS).claims
            self._registry(issuer).validate(proven)
            caller = _caller(issuer, proven)
        except Exception as error:
            # Whatever is raised while a token is read, the token brought: a `crit` that is no
            # list of words, an `exp` that no float holds.
            raise UnauthenticatedError(f"the token is not valid: {error}") from error
        # Not for longer than keys are: one that is withdrawn must not stay in memory.
        accepted_until_s = self._clock() + issuer.refresh_s
        return replace(caller, expires_at_s=min(caller.expires_at_s, accepted_until_s))

    def _registry(self, issuer: TrustedIssuer) -> jwt.JWTClaimsRegistry:
        return jwt.JWTClaimsRegistry(
            now=lambda: int(self._clock()),
            leeway=issuer.leeway_s,
            iss={"essential": True, "value": issuer.issuer},
            aud={"essential": True, "value": issuer.audience},
            exp={"essential": True},
        )


def _unproven(token: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Header and claims as they stand there: enough to find the key that proves them."""
    try:
        unproven = jws.extract_compact(token.encode())
        claims = json.loads(unproven.payload)
        header = unproven.headers()
    except Exception as error:
        # As above; but its signature is not verified yet, so nothing of it is logged.
        raise UnauthenticatedError("the token is neither a known one nor a JWT") from error
    if not isinstance(claims, dict):
        raise UnauthenticatedError("the token's claims are no JSON object")
    return header, claims


def _caller(issuer: TrustedIssuer, claims: Mapping[str, Any]) -> Caller:
    held = claims.get(issuer.roles_claim) or []
    if isinstance(held, str):
        held = held.split()
    if not isinstance(held, list):
        raise ValueError(f"its claim '{issuer.roles_claim}' is neither list nor text")
    grants = tuple(grant for role in held for grant in issuer.roles.get(str(role), ()))
    # JSON can hold half a surrogate, which no log, message or status can.
    name = str(claims.get(issuer.name_claim) or "unnamed").encode(errors="backslashreplace")
    return Caller(
        name=name.decode(), grants=grants, expires_at_s=float(claims["exp"]) + issuer.leeway_s
    )
