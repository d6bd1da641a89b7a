"""The option list is a promise to users: this test is where a change to it shows."""

import click
import pytest
import typer
from typer.testing import CliRunner

from services.cli.main import app

EXPECTED = {
    "advise": ["--generation", "--json", "--measure", "--store", "--wide", "MODEL"],
    "bench": [
        "--address",
        "--concurrency",
        "--html",
        "--input",
        "--json",
        "--seconds",
        "--sizes",
        "--store",
        "--version",
        "--wide",
        "NAME",
    ],
    "buckets": [
        "--apply",
        "--json",
        "--metrics",
        "--num",
        "--store",
        "--version",
        "--wide",
        "NAME",
    ],
    "build": ["--generation", "--json", "--kind", "--store", "NAME"],
    "doctor": ["--json", "--store"],
    "down": ["--json"],
    "engines": ["--json", "--store", "--wide", "MODEL"],
    "events": ["--follow", "--json", "--limit", "--store", "--wide", "MODEL"],
    "export oci": ["--engines", "--json", "--store", "--version", "MODEL", "REFERENCE"],
    "export triton": [
        "--backend",
        "--generation",
        "--json",
        "--store",
        "--wide",
        "FOLDER",
        "MODEL",
    ],
    "infer": ["--address", "--input", "--json", "--text", "--version", "--wide", "NAME"],
    "logs": ["--files", "--follow", "--json", "--lines", "--ray", "COMPONENT"],
    "models add": [
        "--args",
        "--json",
        "--manifest",
        "--normalize",
        "--pooling",
        "--recipe",
        "--remote-name",
        "--remote-version",
        "--samples",
        "--store",
        "--token",
        "--tokenizer",
        "NAME",
        "SOURCE",
    ],
    "models list": ["--all-versions", "--json", "--store", "--wide"],
    "models load": ["--json", "--store", "NAME"],
    "models remove": ["--json", "--store", "--version", "NAME"],
    "models unload": ["--json", "--store", "NAME"],
    "models weights": ["--clear", "--json", "--store", "--wide", "NAME", "WEIGHTS"],
    "node-labels": ["--json"],
    "profile": [
        "--bucket",
        "--json",
        "--out",
        "--precision",
        "--source",
        "--store",
        "--version",
        "--wide",
        "NAME",
    ],
    "plan": ["--json", "--store", "--what-if", "--wide", "PROFILE"],
    "prune": ["--json", "--older-than", "--store", "--wide", "--yes"],
    "rebuild": ["--generation", "--json", "--reason", "--store", "--version", "NAME"],
    "recipe check": ["--json", "--model", "--store", "FILE"],
    "recipe init": ["--json", "--out", "--store", "MODEL"],
    "recipe schema": ["--json"],
    "report": ["--json", "--output", "--prices", "--store", "--version", "MODEL"],
    "samples calibrate": ["--json", "--store", "NAME"],
    "samples delete": ["--before", "--json", "--store", "NAME"],
    "samples show": ["--json", "--store", "--wide", "NAME"],
    "status": ["--json", "--wide", "MODEL"],
    "token": ["--json", "--model", "--verb", "NAME"],
    "up": [
        "--demo",
        "--detach",
        "--exit-after-demo",
        "--gateway-workers",
        "--generation",
        "--grpc-port",
        "--host",
        "--http-port",
        "--json",
        "--metrics-port",
        "--observe",
        "--observe-port",
        "--ray-address",
        "--store",
    ],
    "why": ["--generation", "--json", "--keys", "--store", "--version", "--wide", "NAME"],
}


def _options(command: click.Command) -> list[str]:
    names = []
    for parameter in command.params:
        is_argument = parameter.param_type_name == "argument"
        names.append((parameter.name or "").upper() if is_argument else parameter.opts[0])
    return sorted(names)


def _commands(group: click.Group, prefix: str = "") -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= _commands(command, f"{prefix}{name} ")  # type: ignore[arg-type]
        else:
            found[prefix + name] = _options(command)
    return found


def test_every_command_has_exactly_these_options() -> None:
    assert _commands(typer.main.get_command(app)) == EXPECTED  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("num", "wanted"), [("0", "equal to 1"), ("257", "equal to 256"), ("two", "valid integer")]
)
def test_a_wrong_number_of_gateway_workers_is_refused(num: str, wanted: str) -> None:
    result = CliRunner().invoke(app, ["up", "--gateway-workers", num])
    assert result.exit_code == 2
    # Without the frame around it, whose width may break the line anywhere.
    said = " ".join(result.output.replace("│", " ").split())
    assert "Invalid value for '--gateway-workers'" in said
    assert wanted in said


def test_every_command_can_print_json_and_is_explained() -> None:
    group = typer.main.get_command(app)
    for name, options in _commands(group).items():  # type: ignore[arg-type]
        assert "--json" in options, name
    for command in group.commands.values():  # type: ignore[attr-defined]
        assert command.help, command.name
