"""The access file: what it may say, and how a wrong one is refused."""

import pytest

from services.contracts.errors import InvalidRequestError, NotAllowedError
from services.gateway.access.access_file import AccessDocument, Grant
from services.gateway.access.caller import Caller
from services.gateway.access.verbs import Verb

TRUSTED = "issuers: [{{issuer: i, audience: a, jwks: {jwks}, roles: {{r: [{{verbs: [infer]}}]}}}}]"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tokens: [", "access file a.yaml: not YAML"),
        ("tokens: 7", "access file a.yaml: tokens: got 7"),
        ("token: []", "token: no such key, did you mean 'tokens'?"),
        (
            "tokens: [{name: a, sha256: abc}]",
            r"tokens.0.sha256: got 'abc': expected text of",
        ),
        (
            "tokens: [{name: a, sha256: " + "a" * 64 + ", grants: [{verbs: [infr]}]}]",
            "tokens.0.grants.0.verbs.0: got 'infr'.*'infer'",
        ),
        (
            "tokens: [{name: a, sha256: " + "a" * 64 + ", grants: [{verbs: []}]}]",
            "tokens.0.grants.0.verbs: ",
        ),
        (TRUSTED.format(jwks="http://idp.test/keys"), "use https"),
        (TRUSTED.format(jwks="ftp://idp.test/keys"), "expected an https URL or a file's path"),
    ],
)
def test_a_wrong_file_is_refused_with_place_value_and_wish(text: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        AccessDocument.from_yaml(text, "a.yaml")


@pytest.mark.parametrize("jwks", ["https://idp.test/keys", "http://127.0.0.1:9/k", "/etc/keys"])
def test_keys_come_over_https_or_from_this_host(jwks: str) -> None:
    document = AccessDocument.from_yaml(TRUSTED.format(jwks=jwks), "a.yaml")
    assert document.issuers[0].jwks == jwks


def test_an_empty_file_lets_nobody_in() -> None:
    assert AccessDocument.from_yaml("", "a.yaml") == AccessDocument()


@pytest.mark.parametrize(
    ("patterns", "model", "is_covered"),
    [
        (("*",), "minilm", True),
        (("*",), "", True),
        (("rank-*",), "rank-2", True),
        (("rank-*",), "Rank-2", False),
        (("rank-*",), "", False),
        (("a", "b"), "b", True),
        (("a", "b"), "ab", False),
        ((), "a", False),
    ],
)
def test_patterns_cover_names(patterns: tuple[str, ...], model: str, is_covered: bool) -> None:
    assert Grant(verbs=(Verb.INFER,), models=patterns).covers(model) is is_covered


def test_a_verb_and_its_model_must_stand_in_one_grant() -> None:
    grants = (
        Grant(verbs=(Verb.INFER,), models=("a",)),
        Grant(verbs=(Verb.LOAD, Verb.ADMIN), models=("b",)),
    )
    caller = Caller(name="ada", grants=grants)
    caller.require(Verb.INFER, "a")
    caller.require(Verb.LOAD, "b")
    caller.require(None, "b")
    with pytest.raises(NotAllowedError, match="'ada' may not do this: it needs 'infer' on model"):
        caller.require(Verb.INFER, "b")
    with pytest.raises(NotAllowedError, match="any verb on all models at once"):
        caller.require(None, "")
