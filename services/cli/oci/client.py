"""The calls of OCI's distribution API that a push and a pull need.

Files are sent and read in parts, what is read is hashed on its way, and each wait has a bound.
"""

import base64
import hashlib
import json
import re
import subprocess
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin

import requests
from requests.adapters import HTTPAdapter
from requests.exceptions import RequestException
from urllib3.util import Retry

from services.cli.oci.artifact import MANIFEST_TYPE
from services.cli.oci.artifact_reference import OciReference
from services.contracts.errors import (
    CorruptBlobError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    NotReadyError,
    SmeltError,
    UnauthenticatedError,
)
from services.contracts.process.settings import ProcessSettings

_HELPER_TIMEOUT_S = 60.0

_PART_BYTES = 2**20
# To connect, and to wait: a registry may hash gigabytes before it answers.
_TIMEOUT_S = (10.0, 300.0)
_RETRIES = Retry(
    total=2,
    backoff_factor=0.5,
    status_forcelist=(429, 502, 503, 504),
    allowed_methods=("GET", "HEAD", "POST"),  # a part of a blob cannot be sent twice
    raise_on_status=False,
    respect_retry_after_header=False,  # it may name hours
)
_LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
_FIELD = re.compile(r'(\w+)="([^"]*)"')
_REASON = re.compile(r'"message"\s*:\s*"([^"]{1,200})')
_AWAY = "is it up, and reached from this host? then try again"
_AWAY_BY_TLS = (
    "is it up, reached from this host, and its certificate signed by one of REQUESTS_CA_BUNDLE? "
    "Without TLS, on a network that you trust: SMELT_OCI_PLAIN_HTTP={registry}; then try again"
)
_REFUSALS: dict[int, tuple[type[SmeltError], str]] = {
    401: (UnauthenticatedError, "not authenticated: docker login {registry}"),
    403: (NotAllowedError, "log in as a user with access: docker login {registry}"),
    404: (NotFoundError, "is the repository, tag or digest right, and was it pushed?"),
}


class OciClient:
    """The repository of one artifact."""

    def __init__(self, place: OciReference, plain_http: Collection[str]) -> None:
        """Nothing is sent yet; `plain_http` are registries that are trusted without TLS."""
        self._place = place
        is_plain = _LOOPBACK.fullmatch(place.registry) or place.registry in plain_http
        self._away = _AWAY if is_plain else _AWAY_BY_TLS
        self._root = f"http{'' if is_plain else 's'}://{place.registry}/"
        self._header = ""
        self._session = requests.Session()
        self._session.headers["Accept-Encoding"] = "identity"
        # Nowhere else without TLS, wherever the registry sends us.
        self._session.adapters.clear()
        for prefix in ("https://", self._root):
            self._session.mount(prefix, HTTPAdapter(max_retries=_RETRIES))
        # Set in any case: requests would take a password from ~/.netrc.
        self._session.auth = self._sign

    def read(self, what: str, max_bytes: int) -> Iterator[bytes]:
        """The parts of `manifests/TAG`, `manifests/DIGEST` or `blobs/DIGEST`.

        Raises:
            CorruptBlobError: after all parts: they have another digest, or are too many.
        """
        sha = hashlib.sha256()
        num_bytes = 0
        with self._send("GET", what, headers={"Accept": MANIFEST_TYPE}) as answer:
            try:
                for part in answer.iter_content(_PART_BYTES):
                    num_bytes += len(part)
                    if num_bytes > max_bytes:
                        break
                    sha.update(part)
                    yield part
            except RequestException as error:
                raise self._fault(f"GET {what}", type(error).__name__) from error
        found = f"sha256:{sha.hexdigest()}"
        if num_bytes > max_bytes or (":" in what and not what.endswith(found)):
            size = f"more than {max_bytes} bytes" if num_bytes > max_bytes else found
            fix = "it was altered or cut short; pull it once more, or have it pushed again"
            raise self._fault(f"GET {what}", f"got {size}", CorruptBlobError, fix)

    def put_blob(self, digest: str, opened: Callable[[], BinaryIO]) -> bool:
        """Push what is opened, unless it is there; returns whether it was not."""
        with suppress(NotFoundError):
            self._send("HEAD", f"blobs/{digest}").close()
            return False
        with self._send("POST", "blobs/uploads/") as answer:
            place = urljoin(answer.url, answer.headers.get("Location", ""))
        headers = {"Content-Type": "application/octet-stream"}
        with opened() as file:
            # The registry hashes it too, and refuses other bytes.
            query = {"digest": digest}
            self._send("PUT", place, data=file, params=query, headers=headers).close()
        return True

    def put_manifest(self, data: bytes) -> None:
        """Put the tag: until then no pull finds what was pushed."""
        headers = {"Content-Type": MANIFEST_TYPE}
        self._send("PUT", f"manifests/{self._place.tag}", data=data, headers=headers).close()

    def _send(self, method: str, what: str, **options: Any) -> requests.Response:
        """Ask for a path of the repository, or for a whole URL; raises what the status means."""
        url = urljoin(f"{self._root}v2/{self._place.repository}/", what)
        what = f"{method} {what.partition('?')[0]}"  # a query may hold a signature
        for is_last in (False, True):
            try:
                answer = self._session.request(
                    method, url, stream=True, timeout=_TIMEOUT_S, **options
                )
                if answer.ok:
                    break
                with answer:
                    if is_last or answer.status_code != requests.codes.unauthorized:
                        raise self._refusal(what, answer)
                    self._log_in(answer.headers.get("WWW-Authenticate", ""))
            except RequestException as error:
                raise self._fault(what, type(error).__name__) from error
            if hasattr(options.get("data"), "seek"):
                options["data"].seek(0)
        return answer

    def _sign(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._header and str(request.url).startswith(self._root):
            request.headers["Authorization"] = self._header
        return request

    def _log_in(self, challenge: str) -> None:
        """Get what the registry asks for: also what is public may want a token."""
        kind, _, rest = challenge.partition(" ")
        login = login_of(self._place.registry)
        self._header = f"Basic {b64encode(login.encode()).decode()}" if login else ""
        if kind.lower() == "bearer":
            fields = dict(_FIELD.findall(rest))
            realm = fields.get("realm", "")
            asked = {name: fields[name] for name in ("service", "scope") if name in fields}
            given = {"Authorization": self._header} if login else {}
            given |= {"Accept-Encoding": "identity"}
            with self._session.get(
                realm, params=asked, headers=given, timeout=_TIMEOUT_S, stream=True
            ) as answer:
                self._header = f"Bearer {self._token(realm, answer)}"

    def _token(self, realm: str, answer: requests.Response) -> str:
        what = f"GET {realm}"
        if not answer.ok:
            raise self._refusal(what, answer)
        body = b""
        for part in answer.iter_content(_PART_BYTES):
            body += part
            if len(body) > _PART_BYTES:
                raise self._fault(what, "more than a token", InvalidRequestError, "see its log")
        try:
            found = json.loads(body)
            token = found.get("token") or found["access_token"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            token = None
        if not (isinstance(token, str) and token.isascii() and token.isprintable()):
            raise self._fault(what, "no token in its answer", InvalidRequestError, "see its log")
        return token

    def _refusal(self, what: str, answer: requests.Response) -> SmeltError:
        status = answer.status_code
        is_away = status >= 500 or status == requests.codes.too_many_requests
        other = (NotReadyError, self._away) if is_away else (InvalidRequestError, "see its log")
        body = next(answer.iter_content(_PART_BYTES), b"").decode(errors="replace")
        reasons = ", ".join([answer.reason, *_REASON.findall(body)])
        return self._fault(what, f"HTTP {status} ({reasons})", *_REFUSALS.get(status, other))

    def _fault(
        self, what: str, found: str, kind: type[SmeltError] = NotReadyError, fix: str = ""
    ) -> SmeltError:
        # Of an exception its name alone: its words have the URL with its query.
        fix = (fix or self._away).format(registry=self._place.registry)
        return kind(f"{self._place}: {what}: {found}: {fix}")


class _DockerEnvironment(ProcessSettings):
    docker_config: str = ""


def login_of(registry: str) -> str:
    """`USER:PASSWORD` for a registry; "" where there is none.

    Raises:
        InvalidRequestError: the configuration or its helper cannot be read.
    """
    # As Docker takes it: one that is empty is not set.
    folder = Path(_DockerEnvironment().docker_config or "~/.docker")
    path = folder.expanduser() / "config.json"
    try:
        config = json.loads(path.read_bytes()) if path.exists() else {}
        auth = config.get("auths", {}).get(registry, {}).get("auth")
        helper = config.get("credHelpers", {}).get(registry) or config.get("credsStore")
        if auth or not helper:
            return base64.b64decode(auth or "").decode()
        done = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=registry.encode(),
            capture_output=True,
            timeout=_HELPER_TIMEOUT_S,
            check=False,
        )
        found = json.loads(done.stdout if done.returncode == 0 else "{}")  # it knows none
        return f"{found['Username']}:{found['Secret']}" if found else ""
    except (OSError, ValueError, KeyError, AttributeError, subprocess.SubprocessError) as error:
        # Neither its words nor where it comes from: they may hold what is secret.
        raise InvalidRequestError(
            f"{path}, or the credential helper that it names, cannot be read "
            f"({type(error).__name__}); create it again: docker login {registry}"
        ) from None
