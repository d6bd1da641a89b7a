"""Two OCI registries for tests: Debian's docker-registry, and a few calls of one in Python."""

import hashlib
import json
import re
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

USER = "smelt"
PASSWORD = "an open secret"
# Of bcrypt, which docker-registry wants.
_HTPASSWD = "$2b$05$eblKlryZsOSecZxXtHTL0eqKaj683wIPT10vP4inGsZpTLn3//r/e"
TOKEN = "a-token"


class AnyRegistry(Protocol):
    """What tests do with either."""

    address: str

    def alter(self, digest: str, content: bytes) -> None:
        """Put other bytes in the place of a blob or manifest."""


@dataclass
class StubRegistry:
    """Blobs, manifests and tags of any repository, and what goes wrong.

    Attributes:
        auth: "", "basic" or "token".
        cut: a blob of which half is sent, before the connection is closed.
        refused: answers a request before it is looked at, with this status.
        seen: each request, as `METHOD path`.
        token: what its token service answers.
    """

    address: str = ""
    auth: str = ""
    cut: str = ""
    refused: Callable[[str], int] = lambda _: 0
    headers: dict[str, str] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    token: bytes = json.dumps({"token": TOKEN}).encode()
    blobs: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def alter(self, digest: str, content: bytes) -> None:
        assert digest in self.blobs
        self.blobs[digest] = content

    def keep(self, content: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.blobs[digest] = content
        return digest


class _Handler(BaseHTTPRequestHandler):
    registry: StubRegistry

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        url = urlsplit(self.path)
        request = f"{self.command} {url.path}"
        self.registry.seen.append(request)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if url.path == "/token":
            return self._token()
        if status := self.registry.refused(request):
            return self._send(status, b'{"errors": [{"message": "as the test wants"}]}')
        if self.registry.auth and not self._is_known():
            return self._send(401, b"", **{"WWW-Authenticate": self._challenge()})
        match = re.fullmatch(r"/v2/(.+)/(blobs|manifests)/(.*)", url.path)
        assert match, url.path
        if self.command == "POST":
            return self._send(202, b"", Location="/v2/x/blobs/uploads/1?state=secret")
        if self.command == "PUT":
            return self._put(match[1], match[2], match[3], body)
        digest = self.registry.tags.get(f"{match[1]}:{match[3]}", match[3])
        return self._give(digest)

    def _put(self, repository: str, kind: str, name: str, body: bytes) -> None:
        digest = self.registry.keep(body)
        if kind == "manifests":
            self.registry.tags[f"{repository}:{name}"] = digest
        elif parse_qs(urlsplit(self.path).query)["digest"] != [digest]:
            return self._send(400, b'{"errors": [{"message": "digest did not match"}]}')
        return self._send(201, b"")

    def _give(self, digest: str) -> None:
        content = self.registry.blobs.get(digest)
        if content is None:
            return self._send(404, b'{"errors": [{"message": "unknown"}]}')
        if digest == self.registry.cut and self.command == "GET":
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return None
        return self._send(200, content)

    def _token(self) -> None:
        basic = f"Basic {b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
        if self.headers.get("Authorization") != basic:
            return self._send(401, b"")
        return self._send(200, self.registry.token)

    def _is_known(self) -> bool:
        basic = f"Basic {b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
        wanted = basic if self.registry.auth == "basic" else f"Bearer {TOKEN}"
        return self.headers.get("Authorization") == wanted

    def _challenge(self) -> str:
        if self.registry.auth == "basic":
            return 'Basic realm="registry"'
        realm = f"http://{self.registry.address}/token"
        return f'Bearer realm="{realm}",service="stub",scope="repository:x:pull,push"'

    def _send(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**self.registry.headers, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def stub_registry(auth: str = "") -> Iterator[StubRegistry]:
    """The one in Python."""
    registry = StubRegistry(auth=auth)
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    registry.address = f"127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield registry
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class DockerRegistry:
    """A docker-registry whose files are in a folder."""

    address: str
    folder: Path

    def alter(self, digest: str, content: bytes) -> None:
        name = digest.removeprefix("sha256:")
        path = self.folder / f"docker/registry/v2/blobs/sha256/{name[:2]}/{name}/data"
        assert path.is_file()
        path.write_bytes(content)


@contextmanager
def docker_registry(folder: Path, *, has_login: bool = False) -> Iterator[DockerRegistry]:
    """Debian's; skips where it is not installed."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry not found: deploy/local/install_debian.sh docker-registry")
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder)}},
        "http": {"addr": "127.0.0.1:0"},
    }
    if has_login:
        (folder / "htpasswd").write_text(f"{USER}:{_HTPASSWD}\n")
        config["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
    (folder / "config.yml").write_text(yaml.safe_dump(config))
    command = [program, "serve", str(folder / "config.yml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stderr
        found = None
        while found is None and (line := process.stderr.readline()):
            found = re.search(rb"listening on (127\.0\.0\.1:\d+)", line)
        assert found, "docker-registry ended"
        # Read on: a full pipe would stop it.
        reader = Thread(target=process.stderr.read, daemon=True)
        reader.start()
        yield DockerRegistry(found[1].decode(), folder)
        process.terminate()
        reader.join()
