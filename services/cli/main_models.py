"""The sub-commands of `smelt models` and their options."""

from pathlib import Path
from typing import Annotated, Final

import typer

from services.cli.main_options import Store, has_tables, model_argument, settings_for
from services.contracts.errors import InvalidRequestError
from services.contracts.model.pooling_choice import Pooling

models_app = typer.Typer(
    no_args_is_help=True,
    help="Models and their versions.",
    epilog="Example: smelt models add ranker ranker.onnx",
)
# Options of servers alone, with the source that each is for.
_REMOTE_ONLY: Final = {
    "--remote-name": "the URL of a server",
    "--remote-version": "the URL of a KServe server",
    "--token": "the URL of a server",
    "--args": "ray+openai://PACKAGE.MODULE:NAME",
    "--manifest": "k8s+ and the URL of a server",
}


@models_app.command(
    "add", epilog="Example: smelt models add ranker ranker.onnx --recipe recipe.yaml"
)
def models_add(
    name: Annotated[str, typer.Argument(help="Name under which clients call the model.")],
    source: Annotated[
        str,
        typer.Argument(
            help="FILE.onnx, a folder as Hugging Face's hub lays it out, hf://ORG/MODEL, "
            "package.module:factory, triton://DIR, oci://REGISTRY/REPOSITORY:TAG; or a server that "
            "has the model: openai+http://HOST/v1, grpc://HOST:PORT (https, grpcs), or an "
            "application for Ray Serve to run: ray+openai://PACKAGE.MODULE:NAME; or, as a URL with "
            "k8s+ before it, a Deployment for Kubernetes to run behind the Service HOST."
        ),
    ],
    recipe: Annotated[Path | None, typer.Option(help="Recipe, a YAML file.")] = None,
    samples: Annotated[
        Path | None, typer.Option(help="Real inputs for the recipe's task, an .npz file.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json, for a model of tokens to take text.")
    ] = None,
    pooling: Annotated[
        Pooling | None, typer.Option(help="How token vectors become an output `embedding`.")
    ] = None,
    normalize: Annotated[
        bool | None, typer.Option(help="Whether an embedding gets length 1; no by default.")
    ] = None,
    remote_name: Annotated[
        str, typer.Option(help="What an external server calls the model; NAME by default.")
    ] = "",
    remote_version: Annotated[
        str, typer.Option(help="Version there, of a KServe server; by default its own choice.")
    ] = "",
    token: Annotated[
        str, typer.Option(help="File name of its token in the gateway's token folder.")
    ] = "",
    args: Annotated[Path | None, typer.Option(help="Arguments of ray+..., a YAML file.")] = None,
    manifest: Annotated[Path | None, typer.Option(help="Manifest of k8s+..., a YAML file.")] = None,
    store: Store = "",
) -> None:
    """Make an ONNX master of a model and publish it as the model's next version.

    Of a server or an application nothing is made: gateways pass requests on to it.
    """
    from services.contracts.external.external_model import is_external_url

    settings = settings_for(store)
    if is_external_url(source):
        from services.cli.models.external import RemoteModel, run_add_external

        remote = RemoteModel(source, remote_name or name, remote_version, token, args, manifest)
        has_options = {recipe, samples, tokenizer, pooling, normalize} != {None}
        run_add_external(settings, name, remote, has_options=has_options)
        return
    _refuse_remote(source, remote_name, remote_version, token, args, manifest)
    from services.cli.models.add_command import run_models_add
    from services.cli.models.asked_text import AskedText

    text = AskedText(tokenizer=tokenizer, pooling=pooling, normalize=normalize)
    run_models_add(settings, name, source, recipe, samples, text)


def _refuse_remote(source: str, *values: str | Path | None) -> None:
    """Raise InvalidRequestError for an option that only servers have, in the order of these."""
    for (option, wanted), value in zip(_REMOTE_ONLY.items(), values, strict=True):
        if value:
            raise InvalidRequestError(
                f"{source}: a model with a master takes no {option}: leave it out, or give "
                f"{wanted} as source"
            )


@models_app.command("list", epilog="Example: smelt models list --all-versions")
@has_tables
def models_list(
    all_versions: Annotated[
        bool, typer.Option("--all-versions", help="A line for each version, with its state.")
    ] = False,
    store: Store = "",
) -> None:
    """List models with their newest version, how many there are, and which serve."""
    from services.cli.models.listing import run_models_list

    settings = settings_for(store)
    run_models_list(settings, is_each_version=all_versions)


@models_app.command("remove", epilog="Example: smelt models remove ranker --version 2")
def models_remove(
    name: Annotated[str, model_argument("Model to remove.")],
    version: Annotated[
        int | None, typer.Option(min=1, help="Only this version; by default all.")
    ] = None,
    store: Store = "",
) -> None:
    """Withdraw a model, or one of its versions; its engines stay in the store."""
    from services.cli.models.withdraw import run_models_remove

    run_models_remove(settings_for(store), name, version)


@models_app.command("unload", epilog="Example: smelt models unload ranker")
def models_unload(
    name: Annotated[str, model_argument("Model to withdraw.")],
    store: Store = "",
) -> None:
    """Unload a model until it is loaded again, whatever is published meanwhile."""
    from services.cli.models.withdraw import run_models_serve

    run_models_serve(settings_for(store), name, is_served=False)


@models_app.command("load", epilog="Example: smelt models load ranker")
def models_load(
    name: Annotated[str, model_argument("Model that was unloaded.")],
    store: Store = "",
) -> None:
    """Serve a model again that was unloaded."""
    from services.cli.models.withdraw import run_models_serve

    run_models_serve(settings_for(store), name, is_served=True)


@models_app.command("weights", epilog="Example: smelt models weights ranker 1=95 2=5")
@has_tables
def models_weights(
    name: Annotated[str, model_argument("Model whose versions share requests.")],
    weights: Annotated[
        list[str] | None, typer.Argument(help="VERSION=WEIGHT, as in: 1=95 2=5")
    ] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="Give every request to the newest again.")
    ] = False,
    store: Store = "",
) -> None:
    """Set how versions share the requests that name none; without weights, show it."""
    from services.cli.models.weights import run_models_weights

    settings = settings_for(store)
    run_models_weights(settings, name, weights or (), is_cleared=clear)
