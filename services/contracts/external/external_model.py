"""A model that another server serves, by its URL.

external/<name>/versions/<n>.json     ExternalModel
external/<name>/removed/<n>.json      ModelRemoval
"""

from enum import StrEnum
from typing import Final, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, model_validator

from services.contracts.model.document import Document

_OPENAI: Final = "openai+"
_SCHEMES: Final = ("openai+http", "openai+https", "grpc", "grpcs")
EXPECTED_URL: Final = (
    "openai+http://HOST[:PORT]/v1, openai+https://..., grpc://HOST:PORT or grpcs://HOST:PORT"
)


class ServerProtocol(StrEnum):
    """What an external server speaks."""

    OPENAI = "openai"
    KSERVE = "kserve"


class ExternalModel(Document):
    """One numbered version of a model that an external server serves: it has no master.

    Attributes:
        url: of the server, see `EXPECTED_URL`; without user, query and fragment.
        remote_name, remote_version: what the server calls the model; "" leaves the version to it.
        token: names the file in the folder of tokens (`external_token_dir`) whose content is sent
            as bearer token; "" sends none. The token itself is never in a store.
        created_at: ISO 8601, UTC.
    """

    name: str
    version: int
    url: str
    remote_name: str
    remote_version: str = ""
    token: str = Field(default="", pattern="^([A-Za-z0-9][A-Za-z0-9_.-]{0,99})?$")
    created_at: str = ""

    @model_validator(mode="after")
    def _has_url(self) -> Self:
        parts = urlsplit(self.url)
        is_openai = parts.scheme.startswith(_OPENAI)
        has_port = is_openai or (parts.port is not None and parts.path in ("", "/"))
        is_plain = not (parts.query or parts.fragment or parts.username or parts.password)
        if not (is_external_url(self.url) and parts.hostname and has_port and is_plain):
            raise ValueError(f"URL '{self.url}': expected {EXPECTED_URL}")
        return self

    @property
    def protocol(self) -> ServerProtocol:
        """What the server speaks, by the URL."""
        is_openai = self.url.startswith(_OPENAI)
        return ServerProtocol.OPENAI if is_openai else ServerProtocol.KSERVE

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self._parts.scheme in ("openai+https", "grpcs")

    @property
    def http_url(self) -> str:
        """Of an OpenAI server: what paths as `/models` are appended to."""
        return self.url.removeprefix(_OPENAI).rstrip("/")

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        return self._parts.hostname or "", self._parts.port or (443 if self.is_tls else 80)

    @property
    def words(self) -> str:
        """What it is, for people."""
        version = f" version {self.remote_version}" if self.remote_version else ""
        kind = "an OpenAI" if self.protocol is ServerProtocol.OPENAI else "a KServe v2"
        return f"'{self.remote_name}'{version} of {kind} server at {self.url}"

    @property
    def _parts(self) -> SplitResult:
        return urlsplit(self.url)


def is_external_url(text: str) -> bool:
    """Whether a source names an external server."""
    return text.partition("://")[0] in _SCHEMES
