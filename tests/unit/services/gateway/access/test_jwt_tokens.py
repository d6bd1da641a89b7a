"""Made-up tokens: whatever stands in them, they are refused and nothing breaks."""

import base64
import json
import math
import time
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey

from services.contracts.errors import UnauthenticatedError
from services.gateway.access.access_file import TrustedIssuer
from services.gateway.access.jwks import IssuerKeys
from services.gateway.access.jwt_tokens import JwtTokens

KEY = ECKey.generate_key("P-256", {"kid": "a"})
ISSUER = TrustedIssuer.model_validate(
    {"issuer": "i", "audience": "a", "jwks": "there", "roles": {"r": []}}
)
ODD: list[Any] = [[], [[1]], {}, {"a": 1}, None, 1, 1.5, True, "x", "\ud800", 10**400]
HEADERS = ["alg", "kid", "crit", "typ", "b64", "jwk", "x5c", "zip"]


@pytest.fixture
def tokens() -> JwtTokens:
    document = json.dumps({"keys": [KEY.as_dict(private=False)]}).encode()
    return JwtTokens([ISSUER], lambda _: IssuerKeys("there", 300, read=lambda _: document))


def token(header: Any, claims: Any) -> str:
    """Signed by nobody."""
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), b"s" * 64)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("value", ODD, ids=lambda value: str(type(value).__name__))
async def test_whatever_a_header_says(tokens: JwtTokens, name: str, value: Any) -> None:
    header = {"alg": "ES256", "kid": "a"} | {name: value}
    with pytest.raises(UnauthenticatedError):
        await tokens.caller_of(token(header, {"iss": "i"}))


@pytest.mark.parametrize("value", [[], {}, 7])
async def test_a_key_id_that_is_no_text_is_said(tokens: JwtTokens, value: Any) -> None:
    with pytest.raises(UnauthenticatedError, match="key id .* is no text"):
        await tokens.caller_of(token({"alg": "ES256", "kid": value}, {"iss": "i"}))


@pytest.mark.parametrize("value", ODD, ids=lambda value: str(type(value).__name__))
async def test_whatever_the_claims_say(tokens: JwtTokens, value: Any) -> None:
    header = {"alg": "ES256", "kid": "a"}
    for claims in (value, {"iss": value}, {"iss": "i", "exp": value}):
        with pytest.raises(UnauthenticatedError):
            await tokens.caller_of(token(header, claims))


async def signed(tokens: JwtTokens, **claims: Any) -> str:
    """The caller's name, if the issuer says this of it."""
    good = {"iss": "i", "aud": "a", "exp": time.time() + 99, "sub": "ada", "roles": ["r"]}
    token = jws.serialize_compact({"alg": "ES256", "kid": "a"}, json.dumps(good | claims), KEY)
    return (await tokens.caller_of(token)).name


@pytest.mark.parametrize(
    "value", [*ODD, -(10**400), math.inf, math.nan], ids=lambda value: str(type(value).__name__)
)
async def test_whatever_end_an_issuer_gives_a_token(tokens: JwtTokens, value: Any) -> None:
    assert await signed(tokens) == "ada"
    with pytest.raises(UnauthenticatedError, match="the token is not valid: "):
        await signed(tokens, exp=value)


async def test_roles_that_are_no_list_are_said(tokens: JwtTokens) -> None:
    with pytest.raises(UnauthenticatedError, match="not valid: its claim 'roles' is neither list"):
        await signed(tokens, roles={"r": 1})
