"""Graph breaks of PyTorch sources, with their places; and sources that are none."""

from pathlib import Path

import pytest

from compiler_worker.profiling.breaks import source_report
from services.contracts.errors import InvalidModelError

_SOURCE = """
import torch


class Broken(torch.nn.Module):
    def forward(self, x):
        x = torch.tanh(x)
        torch._dynamo.graph_break()  # here
        return x + 1


class Early(torch.nn.Module):
    def forward(self, x):
        torch._dynamo.graph_break()  # early
        return x + 1


class Skipped(torch.nn.Module):
    def forward(self, x):
        for _ in range(3):
            torch._dynamo.graph_break()  # skipped
            x = x + 1
        return x


class Whole(torch.nn.Module):
    def forward(self, x, scale=1.0):
        return torch.tanh(x) * scale


def broken():
    return Broken(), (torch.ones(2),)


def early():
    return Early(), (torch.ones(2),)


def skipped():
    return Skipped(), (torch.ones(2),)


def whole():
    return Whole(), {"x": torch.ones(2), "scale": torch.ones(2)}


def one_tensor():
    return Whole(), torch.ones(2)


def no_inputs():
    return Whole()


def raises():
    raise ValueError("no weights here")


def wrong_inputs():
    return Whole(), (1, 2, 3)


number = 3
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "owner_source.py"
    path.write_text(_SOURCE)
    return path


@pytest.mark.parametrize(
    ("name", "mark", "num_graphs"),
    [("broken", "# here", 2), ("early", "# early", 1), ("skipped", "# skipped", 0)],
)
def test_a_break_is_told_with_file_line_and_reason(
    source: Path, name: str, mark: str, num_graphs: int
) -> None:
    found = source_report(f"{source}:{name}")
    (one,) = found.breaks
    assert (found.num_graphs, Path(one.file).name) == (num_graphs, source.name)
    assert _SOURCE.splitlines()[one.line - 1].endswith(mark)
    assert one.reason.startswith("Call to `torch._dynamo.graph_break()`")


@pytest.mark.parametrize("name", ["whole", "one_tensor"])
def test_a_whole_graph_has_none(source: Path, name: str) -> None:
    found = source_report(f"{source}:{name}")
    assert (found.num_graphs, found.breaks) == (1, ())
    assert found.num_ops > 0


def test_a_module_on_the_path_will_do(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(source.parent)
    assert source_report("owner_source:whole").num_graphs == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no_inputs", "gave Whole; expected a PyTorchModel, or a module and its example inputs"),
        ("raises", "no weights here"),
        ("wrong_inputs", "failed on its inputs"),
        ("number", "is no function"),
        ("absent", "cannot be imported"),
    ],
)
def test_a_source_that_is_none_is_refused(source: Path, name: str, told: str) -> None:
    with pytest.raises(InvalidModelError, match=told):
        source_report(f"{source}:{name}")


@pytest.mark.parametrize("text", ["no_colon", "nowhere.py:f", "no_such_module_here:f", ":f"])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidModelError, match="expected package.module:function"):
        source_report(text)
