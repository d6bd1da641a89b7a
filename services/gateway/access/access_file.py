"""The access file: tokens, trusted issuers, and what each may do."""

from fnmatch import fnmatchcase
from typing import Self
from urllib.parse import urlsplit

import yaml
from pydantic import Field, ValidationError, field_validator

from services.contracts.errors import InvalidRequestError
from services.contracts.model.document import Document
from services.contracts.model.recipe_faults import first_fault
from services.contracts.model.yaml_text import value_from_yaml
from services.gateway.access.verbs import Verb

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Grant(Document):
    """Verbs on models.

    Attributes:
        models: names, where `*` stands for any characters.
    """

    verbs: tuple[Verb, ...] = Field(min_length=1)
    models: tuple[str, ...] = ("*",)

    def covers(self, model: str) -> bool:
        """Whether a model's name is meant; "" stands for all models at once."""
        if not model:
            return "*" in self.models
        return any(fnmatchcase(model, pattern) for pattern in self.models)


class StaticToken(Document):
    """One bearer token, known by its hash alone.

    Attributes:
        name: whose it is, for the log.
        sha256: of the token's text, in hex. A plain hash is enough because the token is drawn
            at random (256 bits, `smelt token`), not chosen by a person.
    """

    name: str = Field(min_length=1)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    grants: tuple[Grant, ...] = ()


class TrustedIssuer(Document):
    """An identity provider whose signed tokens (JWT) are accepted.

    Attributes:
        issuer: must be the token's `iss`.
        audience: must be among the token's `aud`.
        jwks: where its public keys are: an https URL, or a file's path.
        name_claim: the claim with the caller's name, for the log.
        roles_claim: the claim with the roles: a list, or words with spaces between.
        roles: what each role may do.
        leeway_s: by how much its clock and ours may differ.
        refresh_s: after how long its keys are read again; an unknown key id does it at once.
    """

    issuer: str = Field(min_length=1)
    audience: str = Field(min_length=1)
    jwks: str = Field(min_length=1)
    name_claim: str = "sub"
    roles_claim: str = "roles"
    roles: dict[str, tuple[Grant, ...]] = Field(min_length=1)
    leeway_s: int = Field(default=30, ge=0, le=300)
    refresh_s: float = Field(default=300, ge=1)

    @field_validator("jwks")
    @classmethod
    def _is_private(cls, value: str) -> str:
        url = urlsplit(value)
        if url.scheme == "http" and url.hostname not in _LOOPBACK:
            raise ValueError("keys fetched over plain http can be forged: use https")
        if "://" in value and url.scheme not in ("http", "https"):
            raise ValueError("expected an https URL or a file's path")
        return value


class AccessDocument(Document):
    """The whole file. Without tokens and issuers every request is refused."""

    tokens: tuple[StaticToken, ...] = ()
    issuers: tuple[TrustedIssuer, ...] = ()

    @classmethod
    def from_yaml(cls, text: str, source: str) -> Self:
        """Read it; `source` names the file in errors.

        Raises:
            InvalidRequestError: it is no YAML, or a value is wrong; says which, and what was
                expected.
        """
        try:
            return cls.model_validate(value_from_yaml(text) or {})
        except yaml.YAMLError as error:
            raise InvalidRequestError(f"access file {source}: not YAML: {error}") from error
        except ValidationError as error:
            raise InvalidRequestError(f"access file {source}: {first_fault(error, cls)}") from error
