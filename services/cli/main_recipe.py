"""The sub-commands of `smelt recipe` and their options."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.main_options import Store, settings_for

recipe_app = typer.Typer(
    no_args_is_help=True,
    help="Recipe files: write, check, complete.",
    epilog="Example: smelt recipe init ranker.onnx",
)


@recipe_app.command("init", epilog="Example: smelt recipe init ranker.onnx")
def recipe_init(
    model: Annotated[str, typer.Argument(help="MODEL of the store, FILE.onnx, or module:factory.")],
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("recipe.yaml"),
    store: Store = "",
) -> None:
    """Write a commented recipe for a model: its sizes, kinds, precisions."""
    from services.cli.recipes.recipe_init import run_recipe_init

    run_recipe_init(settings_for(store), model, out)


@recipe_app.command("check", epilog="Example: smelt recipe check recipe.yaml --model ranker.onnx")
def recipe_check(
    file: Annotated[Path, typer.Argument(help="Recipe, a YAML file.")],
    model: Annotated[
        str, typer.Option(help="Check its names too: MODEL of the store, FILE.onnx, or factory.")
    ] = "",
    store: Store = "",
) -> None:
    """Check a recipe as `smelt models add` would, without adding anything."""
    from services.cli.recipes.recipe_check import run_recipe_check

    run_recipe_check(settings_for(store), file, model)


@recipe_app.command("schema", epilog="Example: smelt recipe schema")
def recipe_schema() -> None:
    """Print the recipe's JSON schema, by which editors complete and check one."""
    from services.cli.recipes.recipe_schema import run_recipe_schema

    run_recipe_schema()
