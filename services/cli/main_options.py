"""Options that many sub-commands have, and the settings that come of them."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from services.cli.output.show import output_form
from services.gateway.workers.limits import MAX_WORKERS

if TYPE_CHECKING:
    from services.cli.settings import CliSettings

_CommandT = TypeVar("_CommandT", bound=Callable[..., None])


class CommandGroup(TyperGroup):
    """Names the group of a command that is asked for without it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """`smelt list` is answered with `models list`."""
        for name, group in self.commands.items():
            # A shell that completes asks too.
            is_asked = not ctx.resilient_parsing
            if (
                is_asked
                and args[0] not in self.commands
                and args[0] in getattr(group, "commands", ())
            ):
                ctx.fail(f"No such command '{args[0]}'. Did you mean '{name} {args[0]}'?")
        return super().resolve_command(ctx, args)


def _known_models(context: typer.Context, incomplete: str) -> list[str]:
    """Names for a shell to complete; none where the store cannot be read at once."""
    from services.cli.registry import open_registry
    from services.contracts.errors import SmeltError

    settings = settings_for(context.params.get("store") or "")
    # A shell is not to wait for a network.
    if "://" in settings.store_url:
        return []
    try:
        registry = open_registry(settings)
        names = [*registry.model_names(), *registry.external_names()]
    except SmeltError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def model_argument(help_text: str) -> Any:
    """The argument that names a model of the store."""
    return typer.Argument(help=help_text, autocompletion=_known_models)


HttpPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        show_default="SMELT_GATEWAY_HTTP_PORT, or none",
        help="Port for clients that speak HTTP, 8000 with Triton; 0: any.",
    ),
]
GatewayWorkers = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_WORKERS,
        show_default="SMELT_GATEWAY_WORKERS, or 1, or 3 of 8 cores beside a GPU",
        help="Gateway processes that share the port; each has bounds and a cache of its own.",
    ),
]
MeasuredVersion = Annotated[
    int, typer.Option(min=0, help="Model version (0: newest with timed engines).")
]
_JSON = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
_WIDE = Annotated[
    bool, typer.Option("--wide", help="Show every column, however wide the lines become.")
]
Store = Annotated[str, typer.Option("--store", help="Artifact store: a folder or s3:// URL.")]


def settings_for(store: str = "") -> "CliSettings":
    """Settings of the environment, with another store where one is named.

    Raises InvalidRequestError.
    """
    from services.cli.settings import CliSettings
    from services.contracts.process.settings import read_settings

    return read_settings(CliSettings, **({"store_url": store} if store else {}))


def has_tables(command: _CommandT) -> _CommandT:
    """Mark a command that takes --wide."""
    command.__dict__["options"] = {"as_json": _JSON, "is_wide": _WIDE}
    return command


def complete_commands(app: typer.Typer) -> None:
    """Give every command --json, and its help in paragraphs, which Typer breaks as docstrings."""
    for command in app.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
        if command.callback:
            command.callback = _with_output_form(command.callback)
    for group in app.registered_groups:
        if group.typer_instance:
            complete_commands(group.typer_instance)


def _with_output_form(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which prints as its options say that are added here."""
    options = command.__dict__.get("options", {"as_json": _JSON})
    signature = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation
        )
        for name, annotation in options.items()
    ]

    @wraps(command)
    def run(*, as_json: bool, is_wide: bool = False, **given: Any) -> None:
        with output_form(as_json=as_json, is_wide=is_wide):
            command(**given)

    parameters = [*signature.parameters.values(), *added]
    run.__dict__["__signature__"] = signature.replace(parameters=parameters)
    return run
