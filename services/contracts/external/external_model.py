"""A model that another server serves, by its URL; Ray Serve or Kubernetes may run that server.

external/<name>/versions/<n>.json     ExternalModel
external/<name>/removed/<n>.json      ModelRemoval
"""

import re
from enum import StrEnum
from typing import Final, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, JsonValue, ValidationInfo, model_validator

from services.contracts.external.server_manifest import Object, server_objects
from services.contracts.model.document import Document

_OPENAI: Final = "openai+"
_RAY: Final = "ray+openai://"
_KUBERNETES: Final = "k8s+"
_SCHEMES: Final = ("openai+http", "openai+https", "grpc", "grpcs")
_IMPORT_PATH: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
EXPECTED_URL: Final = (
    "openai+http://HOST[:PORT]/v1, openai+https://..., grpc://HOST:PORT, grpcs://HOST:PORT, one of "
    "these with k8s+ before it and a Service as HOST, or ray+openai://PACKAGE.MODULE:NAME"
)


class ServerProtocol(StrEnum):
    """What an external server speaks."""

    OPENAI = "openai"
    KSERVE = "kserve"


class Starter(StrEnum):
    """What runs a server that is not there without Smelt."""

    RAY = "ray"
    KUBERNETES = "k8s"


class ExternalModel(Document):
    """One numbered version of a model that an external server serves: it has no master.

    Attributes:
        url: of the server, see `EXPECTED_URL`; without user, query and fragment. `ray+openai` has
            the import path of an application that the fleet's Ray Serve runs.
        args: of that application, as in a config file of Ray Serve.
        manifest: the Deployment and the Service that Kubernetes runs; the URL then has `k8s+`
            before it, and the Service's name as host.
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
    # Left out where there are none: an older gateway reads the records of plain servers.
    args: dict[str, JsonValue] = Field(default_factory=dict, exclude_if=lambda args: not args)
    manifest: tuple[dict[str, JsonValue], ...] = Field(
        default=(), exclude_if=lambda manifest: not manifest
    )
    token: str = Field(default="", pattern="^([A-Za-z0-9][A-Za-z0-9_.-]{0,99})?$")
    created_at: str = ""

    @model_validator(mode="after")
    def _has_url(self, info: ValidationInfo) -> Self:
        if self.args and not self.import_path:
            raise ValueError(f"URL '{self.url}': arguments are of ray+openai://... alone")
        if bool(self.manifest) != self.url.startswith(_KUBERNETES):
            raise ValueError(
                f"URL '{self.url}': a manifest (--manifest) is wanted with k8s+..., with no other"
            )
        parts = self._parts
        is_openai = self.protocol is ServerProtocol.OPENAI
        has_port = is_openai or (parts.port is not None and parts.path in ("", "/"))
        is_plain = not (parts.query or parts.fragment or parts.username or parts.password)
        is_plain &= not self.import_path or bool(_IMPORT_PATH.fullmatch(self.import_path))
        if not (is_external_url(self.url) and parts.hostname and has_port and is_plain):
            raise ValueError(f"URL '{self.url}': expected {EXPECTED_URL}")
        # What a store has was checked as it was published: a rule that came later refuses to run
        # that version, and not to read it.
        if self.manifest and info.mode == "python":
            self.objects()
        return self

    @property
    def protocol(self) -> ServerProtocol:
        """What the server speaks, by the URL."""
        is_openai = self._server_url.startswith((_OPENAI, _RAY))
        return ServerProtocol.OPENAI if is_openai else ServerProtocol.KSERVE

    @property
    def starter(self) -> Starter | None:
        """What runs the server; None for one that runs without Smelt."""
        if self.manifest:
            return Starter.KUBERNETES
        return Starter.RAY if self.import_path else None

    @property
    def import_path(self) -> str:
        """Of the application that Ray Serve runs; "" for a server that runs without Smelt."""
        return self.url.removeprefix(_RAY) if self.url.startswith(_RAY) else ""

    @property
    def route_prefix(self) -> str:
        """Of that application, at the HTTP proxy of Ray Serve."""
        return f"/external/{self.name}/{self.version}"

    def behind(self, address: str) -> Self:
        """As it is asked once what runs it answers at `host:port`."""
        url = f"{_OPENAI}http://{address}{self.route_prefix}/v1"
        if self.manifest:
            url = self._parts._replace(netloc=address).geturl()
        return self.model_copy(update={"url": url, "args": {}, "manifest": ()})

    @property
    def without_secrets(self) -> Self:
        """As others than its starter have it: arguments and manifest may hold what is secret."""
        return self.model_copy(update={"url": self._server_url, "args": {}, "manifest": ()})

    def objects(self) -> dict[str, Object]:
        """What Kubernetes is to have of this version, by kind; raises ValueError."""
        return server_objects(self.manifest, self.place, self.name, self.version)

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
        if self.import_path:
            return f"'{self.remote_name}' of the Ray Serve application {self.import_path}"
        version = f" version {self.remote_version}" if self.remote_version else ""
        kind = "an OpenAI" if self.protocol is ServerProtocol.OPENAI else "a KServe v2"
        where = "that Kubernetes runs," if self.manifest else "at"
        return f"'{self.remote_name}'{version} of {kind} server {where} {self.url}"

    @property
    def _server_url(self) -> str:
        return self.url.removeprefix(_KUBERNETES)

    @property
    def _parts(self) -> SplitResult:
        return urlsplit(self._server_url)


def is_external_url(text: str) -> bool:
    """Whether a source names an external server."""
    return text.startswith(_RAY) or text.removeprefix(_KUBERNETES).partition("://")[0] in _SCHEMES
