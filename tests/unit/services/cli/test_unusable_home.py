"""A home that cannot be used is one line with the way out, whatever the command."""

import shlex
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from services.cli.main import main
from services.cli.settings import ANOTHER_HOME


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """A model to add."""
    place = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", place[:1], place[1:])
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.mark.parametrize(
    ("home", "command"),
    [
        ("FILE", "status"),
        ("FILE", "up --detach"),
        ("/proc/x", "up --detach"),
        ("/proc/x/y", "models add a NET"),
    ],
)
def test_it_is_named_with_the_way_to_another(
    home: str,
    command: str,
    net: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    given = home.replace("FILE", str(net))
    monkeypatch.setenv("SMELT_HOME", given)
    monkeypatch.setattr(sys, "argv", ["smelt", *shlex.split(command.replace("NET", str(net)))])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    told = " ".join(capfd.readouterr().err.split())
    assert told.startswith("error: ")
    assert ANOTHER_HOME in told
    assert given.split("/")[1] in told
    assert "Traceback" not in told


def test_a_command_that_reads_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", ["smelt", "status"])
    with pytest.raises(SystemExit):
        main()
    assert not (tmp_path / "home").exists()
