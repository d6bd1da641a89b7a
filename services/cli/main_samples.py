"""The sub-commands of `smelt samples` and their options."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from services.cli.main_options import Store, has_tables, model_argument, settings_for


class _ShowByDefault(TyperGroup):
    """Takes what is no sub-command for a model to show."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """`smelt samples ranker` is `smelt samples show ranker`."""
        is_model = args[0] not in self.commands and not args[0].startswith("-")
        return super().resolve_command(ctx, ["show", *args] if is_model else args)


samples_app = typer.Typer(
    cls=_ShowByDefault,
    no_args_is_help=True,
    help="Rows of requests that replicas keep, where a recipe has `sampling`.",
    epilog="Example: smelt samples show ranker",
)


@samples_app.command("show", epilog="Example: smelt samples show ranker")
@has_tables
def samples_show(
    name: Annotated[str, model_argument("Model whose samples are looked at.")], store: Store = ""
) -> None:
    """Show how many there are, their lengths and values, and how far they are from calibration."""
    from services.cli.sizes.samples import run_samples

    run_samples(settings_for(store), name)


@samples_app.command("calibrate", epilog="Example: smelt samples calibrate ranker")
def samples_calibrate(
    name: Annotated[str, model_argument("Model whose recipe has `calibration: traffic`.")],
    store: Store = "",
) -> None:
    """Publish the next version, the same but calibrated with samples since the last calibration."""
    from services.cli.sizes.samples import run_samples_calibrate

    run_samples_calibrate(settings_for(store), name)


@samples_app.command("delete", epilog="Example: smelt samples delete ranker --before 2026-11-01")
def samples_delete(
    name: Annotated[str, model_argument("Model whose samples are deleted.")],
    before: Annotated[
        str, typer.Option(help="Only windows that ended before this day or moment, UTC.")
    ] = "",
    store: Store = "",
) -> None:
    """Delete samples at once, also of a model that was removed."""
    from services.cli.sizes.samples import run_samples_delete

    run_samples_delete(settings_for(store), name, before)
