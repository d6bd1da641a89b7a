"""What `smelt prune` says when there is nothing old enough."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.errors import InvalidRequestError
from services.contracts.store.object_store import open_store


def test_what_is_unused_and_newer_is_counted(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    store = open_store(url)
    command = ["prune", "--store", url]
    nothing = CliRunner().invoke(app, command, catch_exceptions=False).stdout
    assert "nothing unused is older than 30 days; newer: none" in nothing
    store.create(f"blobs/sha256/{'0' * 64}", b"12345")
    newer = CliRunner().invoke(app, command, catch_exceptions=False).stdout
    assert "nothing unused is older than 30 days; newer: 1 objects, " in newer


def test_less_than_a_day_is_refused_with_the_reason(tmp_path: Path) -> None:
    command = ["prune", "--store", str(tmp_path), "--older-than", "0"]
    with pytest.raises(
        InvalidRequestError, match="objects of a publish in progress are not referenced"
    ):
        CliRunner().invoke(app, command, catch_exceptions=False)
