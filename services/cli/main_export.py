"""The sub-commands of `smelt export` and their options."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from services.cli.main_options import Store, has_tables, model_argument, settings_for


class _ByDestination(TyperGroup):
    """`smelt export oci://...` is the command `oci`, which the destination names already."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        words = ["oci", *args] if args[0].startswith("oci://") else args
        return super().resolve_command(ctx, words)


export_app = typer.Typer(
    cls=_ByDestination,
    no_args_is_help=True,
    help="Models of the store for other servers.",
    epilog="Example: smelt export triton repository",
)


@export_app.command(
    "triton", epilog="Example: smelt export triton repository ranker --generation cuda-sm89"
)
@has_tables
def export_triton(
    folder: Annotated[Path, typer.Argument(help="An empty or new folder.")],
    model: Annotated[list[str] | None, model_argument("By default all that are loaded.")] = None,
    backend: Annotated[
        Literal["auto", "tensorrt_plan", "onnxruntime_onnx"],
        typer.Option(help="auto: plans where every generation has a proven one, else ONNX."),
    ] = "auto",
    generation: Annotated[
        list[str] | None,
        typer.Option(help="A GPU's, by default all that have engines; may be repeated."),
    ] = None,
    store: Store = "",
) -> None:
    """Write a Triton model repository: configurations, and proven plans or ONNX files."""
    from services.cli.export.triton import run_export_triton

    run_export_triton(settings_for(store), folder, model or (), backend, generation or ())


@export_app.command("oci", epilog="Example: smelt export oci registry.example/team/ranker:1 ranker")
def export_oci(
    reference: Annotated[
        str, typer.Argument(help="REGISTRY/REPOSITORY:TAG, with oci:// or without.")
    ],
    model: Annotated[str, model_argument("Model to push.")],
    version: Annotated[int | None, typer.Option(min=1, help="By default the newest.")] = None,
    engines: Annotated[
        bool, typer.Option("--engines/--no-engines", help="Push its proven engines, too.")
    ] = True,
    store: Store = "",
) -> None:
    """Push a version to an OCI registry: master, recipe, and engines with their proofs."""
    from services.cli.oci.push import run_export_oci

    settings = settings_for(store)
    run_export_oci(settings, reference, model, version, has_engines=engines)
