"""`smelt`: every sub-command with its arguments and options, as typer has them."""

from typing import Any

import typer

from services.cli.main import app
from tests.reference.text import page, table

INTRODUCTION = (
    "The commands are in `.venv/bin`. They talk to the fleet of this host, or with "
    "`SMELT_CONTROLLER=HOST:PORT` to the controller of another one. The store is the folder "
    "`~/.smelt/store`, or what `--store` or `SMELT_STORE_URL` name. Tables are as wide as the "
    "terminal, in a pipe 80 columns or `COLUMNS`; where columns are left out for that, `--wide` "
    "shows them, and folds no event. Every command takes `--json`; an error is one line on "
    "standard error (with `--json` one document) and exit code 1. `smelt --version` prints the "
    "versions of Smelt and Python; `smelt --install-completion` has your shell complete commands, "
    "options and names of models. What the environment can set stands in [settings](settings.md)."
)


def commands_page() -> str:
    commands = _commands(typer.main.get_command(app), "smelt")
    overview = table(
        ("command", "what it does"),
        (
            (f"[`{name}`](#{name.replace(' ', '-')})", command.help.split("\n\n")[0])
            for name, command in commands
        ),
    )
    return page("Commands", INTRODUCTION, overview, *(_section(*named) for named in commands))


def all_commands() -> dict[str, Any]:
    """Every command by its words, `models add` say, without `smelt`."""
    found = _commands(typer.main.get_command(app), "smelt")
    return {name.removeprefix("smelt "): command for name, command in found}


def _commands(group: Any, name: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for word, command in sorted(group.commands.items()):
        whole = f"{name} {word}"
        is_group = hasattr(command, "commands")
        found += _commands(command, whole) if is_group else [(whole, command)]
    return found


def _section(name: str, command: Any) -> str:
    given = [parameter for parameter in command.params if parameter.name != "as_json"]
    arguments = [p for p in given if not _is_option(p)]
    options = [p for p in given if _is_option(p)]
    usage = " ".join([name, *map(_argument, arguments), *(["[OPTIONS]"] if options else [])])
    rows = [(f"`{_argument(p)}`", "", p.help or "") for p in arguments]
    rows += [(f"`{_option(p)}`", _default(p), p.help or "") for p in options]
    listed = table(("", "default", ""), rows) if rows else ""
    parts = (f"## {name}", f"    {usage}", command.help, _example(command), listed)
    return "\n\n".join(filter(None, parts))


def _example(command: Any) -> str:
    """Its epilog, which is `Example: smelt ...`, with the command as code."""
    label, _, example = (command.epilog or "").partition(": ")
    return f"{label}: `{example}`" if example else ""


def _is_option(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))


def _argument(parameter: Any) -> str:
    name = parameter.name.upper() + (" ..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _option(parameter: Any) -> str:
    if parameter.is_flag:
        return str(parameter.opts[0])
    value = parameter.metavar or parameter.name.upper()
    return f"{parameter.opts[0]} {value}" + (" ..." if parameter.multiple else "")


def _default(parameter: Any) -> str:
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    is_empty = parameter.is_flag or parameter.default in (None, "")
    return "" if is_empty else f"`{parameter.default}`"
