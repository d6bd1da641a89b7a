"""A real HTTP server that speaks S3, for tests."""

import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from moto.server import ThreadedMotoServer


@contextmanager
def s3_server() -> Iterator[str]:
    """Its address; it has one bucket, `bucket`."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bucket", method="PUT")):
        pass
    yield endpoint
    server.stop()


def empty_s3_store(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a store there that nobody used; this process and its children can open it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return f"s3://bucket/{uuid.uuid4().hex}"
