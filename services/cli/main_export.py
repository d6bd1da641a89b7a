"""The sub-commands of `smelt export` and their options."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from services.cli.main_options import AsJson, Store, model_argument, settings_for

export_app = typer.Typer(
    no_args_is_help=True,
    help="Models of the store for other servers.",
    epilog="Example: smelt export triton repository",
)


# A second command is what makes typer keep the name of the first.
@export_app.callback()
def _export() -> None:
    """Models of the store for other servers."""


@export_app.command(
    "triton", epilog="Example: smelt export triton repository ranker --generation cuda-sm89"
)
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
    as_json: AsJson = False,
) -> None:
    """Write a Triton model repository: configurations, and proven plans or ONNX files."""
    from services.cli.export.triton import run_export_triton

    run_export_triton(
        settings_for(store),
        folder,
        model or (),
        backend,
        generation or (),
        as_json=as_json,
    )
