"""Every command shows an example that it takes; `--version`; completion."""

import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.reference.commands import all_commands
from tests.unit.services.controller import build_world as world

COMMANDS = all_commands()
GROUPS = sorted({name.split()[0] for name in COMMANDS if " " in name})


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_it_takes(name: str) -> None:
    label, _, example = (COMMANDS[name].epilog or "").partition(": ")
    assert label == "Example", f"{name}: it has no epilog of the form `Example: smelt {name} ...`"
    words = shlex.split(example)
    assert words[: 1 + len(name.split())] == ["smelt", *name.split()]
    # Raises for what it does not take; runs nothing.
    COMMANDS[name].make_context(name, words[1 + len(name.split()) :])
    # Help in a terminal of 80 columns shows it in one line, for copying.
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "80"}).output
    assert f"Example: {example}" in shown


@pytest.mark.parametrize(
    "group", ["", *sorted({name.split()[0] for name in COMMANDS if " " in name})]
)
def test_every_group_has_an_example_too(group: str) -> None:
    shown = CliRunner().invoke(app, [*group.split(), "--help"], env={"COLUMNS": "80"}).output
    words = shlex.split(shown.partition("Example: ")[2].splitlines()[0])
    name = " ".join(words[1:3]) if group else words[1]
    assert name.startswith(group)
    COMMANDS[name].make_context(name, words[1 + len(name.split()) :])


def test_paragraphs_are_folded_by_the_terminal_alone() -> None:
    shown = CliRunner().invoke(app, ["rebuild", "--help"], env={"COLUMNS": "400"}).output
    (line,) = (line for line in shown.splitlines() if "A published engine" in line)
    assert line.rstrip().endswith("passed over once the new proof fails.")


def test_the_version_is_that_of_the_distribution() -> None:
    result = CliRunner().invoke(app, ["--version"])
    words = f"smelt {version('smelt')} (Python {platform.python_version()})\n"
    assert (result.exit_code, result.output) == (0, words)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("list", "No such command 'list'. Did you mean 'models list'?"),
        ("models lst", "No such command 'lst'. Did you mean 'list'?"),
        ("frobnicate", "No such command 'frobnicate'."),
    ],
)
def test_a_command_that_is_not_there_is_answered_with_the_one_meant(typed: str, words: str) -> None:
    result = CliRunner().invoke(app, typed.split(), env={"COLUMNS": "80"})
    assert result.exit_code == 2
    assert f"│ {words} " in result.output


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """One whose store has two models."""
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    for name in ("ranker", "reader"):
        registry.add_model_version(
            name=name, master=world.MASTER, recipe=Recipe(), source="s", source_fingerprint="0"
        )
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("smelt mod", {"models"}),
        ("smelt models lo", {"load"}),
        ("smelt why ra", {"ranker"}),
        ("smelt models remove r", {"ranker", "reader"}),
        ("smelt why --store /nowhere r", set()),
        ("smelt why --store s3://nowhere r", set()),
        ("smelt list mod", {"models"}),
    ],
)
def test_commands_and_models_are_completed(home: Path, typed: str, completed: set[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "SMELT_HOME": str(home)}
    environment = dict(os.environ) | words | {"_SMELT_COMPLETE": "complete_bash"}
    code = "import sys; sys.argv = ['smelt']; from services.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert set(done.stdout.split()) == completed, done.stderr
    assert done.stderr == ""


def test_the_script_of_a_shell_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    # Else typer looks for the shell among the processes that started this one.
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    typer.main.get_command(app)
    result = CliRunner().invoke(app, ["--show-completion", "bash"], prog_name="smelt")
    assert "_SMELT_COMPLETE=complete_bash" in result.output
