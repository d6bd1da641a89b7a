"""A real HTTP server that speaks S3, for tests."""

import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from typing import Any

import pytest
from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server


def _one_at_a_time(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Moto looks whether an object exists, then stores it: two creators at once would both win."""
    lock = Lock()

    def answer(*request: Any) -> Iterable[bytes]:
        with lock:
            return application(*request)

    return answer


@contextmanager
def s3_server() -> Iterator[str]:
    """Its address; it has one bucket, `bucket`."""
    application = _one_at_a_time(DomainDispatcherApplication(create_backend_app))
    server = make_server(
        "127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler
    )
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = "http://{}:{}".format(*server.server_address[:2])
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bucket", method="PUT")):
        pass
    yield endpoint
    server.shutdown()
    server.server_close()
    thread.join()


def empty_s3_store(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a store there that nobody used; this process and its children can open it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return f"s3://bucket/{uuid.uuid4().hex}"
