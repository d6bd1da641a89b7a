"""The few endpoints of Hugging Face's hub that bring a model here."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


class HubServer(ThreadingHTTPServer):
    """Serves a folder as `org/model`; files of `gated/model` are refused to every client.

    Attributes:
        brought: names of the files that were sent.
        tokens: that came with requests.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._folder = folder
        self.brought: list[str] = []
        self.tokens: set[str] = set()

    @property
    def files(self) -> dict[str, Path]:
        found = filter(Path.is_file, self._folder.rglob("*"))
        return {str(path.relative_to(self._folder)): path for path in found}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _answer(self) -> None:
        self.server.tokens.add(self.headers.get("authorization", ""))
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        is_question = parts[:2] == ["api", "models"]
        parts = parts[2 * is_question :]
        repository = "/".join(parts[:2])
        what, revision, *file = parts[2:] or ["revision", "main"]
        name = "/".join(file)
        if repository not in ("org/model", "gated/model"):
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", "v1", COMMIT):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif what == "tree":
            sizes = {path: file.stat().st_size for path, file in self.server.files.items()}
            tree = [
                {"type": "file", "path": p, "size": n, "oid": "0" * 40} for p, n in sizes.items()
            ]
            self._send(200, json.dumps(tree).encode())
        elif is_question:
            siblings = [{"rfilename": path} for path in self.server.files]
            self._send(
                200, json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode()
            )
        elif repository == "gated/model":
            self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        else:
            body = self.server.files[name].read_bytes()
            if self.command == "GET":
                self.server.brought.append(name)
            etag = f'"{hashlib.sha256(body).hexdigest()}"'
            self._send(200, body, {"X-Repo-Commit": COMMIT, "ETag": etag})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextmanager
def served_hub(folder: Path) -> Iterator[HubServer]:
    """A hub of one repository."""
    with HubServer(folder) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
