"""The sub-commands that build engines and show or delete what was built, and their options."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.main_options import Store, has_tables, model_argument, settings_for
from services.contracts.hardware.kinds import EngineKind, Precision

builds_app = typer.Typer()


@builds_app.command(epilog="Example: smelt engines ranker")
@has_tables
def engines(
    model: Annotated[str, model_argument("Only engines of this model.")] = "",
    store: Store = "",
) -> None:
    """List published engines: what they are for, their proof, their speed."""
    from services.cli.builds.engines import run_engines

    run_engines(settings_for(store), model)


@builds_app.command(epilog="Example: smelt build ranker --kind onnxruntime")
def build(
    name: Annotated[str, model_argument("Model to build engines for.")],
    generation: Annotated[
        list[str] | None,
        typer.Option(help="For this generation, not this machine's own; may be repeated."),
    ] = None,
    kind: Annotated[
        list[EngineKind] | None,
        typer.Option(help="Only this engine kind of the recipe's; may be repeated."),
    ] = None,
    store: Store = "",
) -> None:
    """Build, prove and publish the engines that a model lacks."""
    from services.cli.builds.build import run_build

    raise typer.Exit(run_build(settings_for(store), name, generation or [], kind or []))


@builds_app.command(epilog="Example: smelt rebuild ranker --reason 'new driver'")
def rebuild(
    name: Annotated[str, model_argument("Model to try again.")],
    generation: Annotated[str, typer.Option(help="Only this generation.")] = "",
    version: Annotated[int, typer.Option(min=0, help="Model version (0: newest).")] = 0,
    reason: Annotated[str, typer.Option(help="Reason, recorded in the event.")] = "",
    store: Store = "",
) -> None:
    """Build again what failed or was quarantined, and prove again what is published.

    A published engine is never overwritten: its key names everything that changes its bytes, so
    building it again could give no other one. It serves on while it is proven again, and is
    passed over once the new proof fails.
    """
    from services.cli.builds.rebuild import run_rebuild

    settings = settings_for(store)
    run_rebuild(settings, name, generation, reason, version=version or None)


@builds_app.command(epilog="Example: smelt profile ranker --out report")
@has_tables
def profile(
    name: Annotated[str, model_argument("Model to profile.")],
    version: Annotated[
        int | None, typer.Option(min=1, help="Model version; by default the newest.")
    ] = None,
    bucket: Annotated[
        str, typer.Option(help="Label of one of its buckets; by default the largest.")
    ] = "",
    precision: Annotated[
        Precision, typer.Option(help="Precision of baseline and compiled run: fp32, fp16, bf16.")
    ] = Precision.FP32,
    source: Annotated[
        str,
        typer.Option(help="PyTorch source to look for graph breaks in: MODULE_OR_FILE.py:FUNCTION"),
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Folder for report, traces and picture.")] = None,
    store: Store = "",
) -> None:
    """Show what compiling a model changes: kernels, fusion, memory traffic, time per op."""
    from compiler_worker.profiling.profile_request import ProfileOptions
    from services.cli.builds.profile import run_profile

    options = ProfileOptions(bucket=bucket, precision=precision, source=source, out=out)
    settings = settings_for(store)
    run_profile(settings, name, version, options)


@builds_app.command(epilog="Example: smelt prune --older-than 30 --yes")
@has_tables
def prune(
    older_than: Annotated[int, typer.Option(help="Minimum age in days (at least 1).")] = 30,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete; without it, only show what would go.")
    ] = False,
    store: Store = "",
) -> None:
    """Show what of the store nothing serves, plans or names any more, and delete it with --yes."""
    from services.cli.builds.prune import run_prune

    run_prune(settings_for(store), older_than_days=older_than, is_confirmed=yes)
