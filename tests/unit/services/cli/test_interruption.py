"""Ctrl-C is said, with what is so now."""

import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from services.cli.main import main
from services.cli.models import add
from services.cli.output.show import INTERRUPTED


def test_a_model_that_was_not_added_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    source = tmp_path / "net.onnx"
    source.touch()
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(add, "add_models", interrupt)
    monkeypatch.setattr(sys, "argv", ["smelt", "models", "add", "m", str(source)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == INTERRUPTED
    assert capfd.readouterr().err.strip() == "error: interrupted; nothing was published"
