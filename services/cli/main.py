"""The command `smelt`: every sub-command and its options.

Errors raised on purpose end with one line, or with --json one document, on standard error and
exit code 1; anything else is a bug and shows its traceback. Imports that cost time sit inside
the commands that need them.
"""

import errno
import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli.main_models import models_app
from services.cli.main_options import AsJson, GatewayWorkers, Store, settings_for
from services.cli.output.show import print_error, print_json_error
from services.contracts.errors import SmeltError
from services.contracts.hardware.facts import Generation
from services.gateway.access.access_file import Verb

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="One ONNX master per model, one proven engine per GPU generation.",
)
app.add_typer(models_app, name="models")


@app.command()
def up(
    demo: Annotated[
        bool, typer.Option("--demo", help="Serve all-MiniLM-L6-v2 and query it.")
    ] = False,
    exit_after_demo: Annotated[
        bool, typer.Option("--exit-after-demo", help="Stop after the demo's answers.")
    ] = False,
    store: Store = "",
    grpc_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port for KServe v2 clients; 0: any.")
    ] = 8001,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of /metrics; 0: any.")
    ] = 8002,
    generation: Annotated[
        str, typer.Option(help="Serve as this generation (a simulation) instead of the device's.")
    ] = "",
    ray_address: Annotated[
        str, typer.Option(help="HOST:PORT of a Ray cluster to serve on; empty starts one here.")
    ] = "",
    host: Annotated[
        str, typer.Option(help="Address of this host, by which the others reach it.")
    ] = "127.0.0.1",
    observe: Annotated[
        bool, typer.Option("--observe", help="Start Prometheus, and Grafana where installed.")
    ] = False,
    observe_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of that Prometheus; 0: any.")
    ] = 9090,
    gateway_workers: GatewayWorkers = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once the fleet serves.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a fleet on this host and serve until Ctrl-C."""
    from services.cli.fleet.up import run_up
    from services.cli.fleet.up_options import UpOptions

    # Refused before Ray is started, which takes seconds.
    if generation:
        Generation.parse(generation)
    options = UpOptions(
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        generation=generation,
        ray_address=ray_address,
        host=host,
        is_observed=observe,
        observe_port=observe_port,
        num_gateway_workers=gateway_workers,
    )
    raise typer.Exit(
        run_up(
            settings_for(store),
            options,
            is_demo=demo or exit_after_demo,
            is_over_after_demo=exit_after_demo,
            is_detached=detach,
            as_json=as_json,
        )
    )


@app.command()
def down(as_json: AsJson = False) -> None:
    """Stop the fleet of this host; requests in flight finish."""
    from services.cli.fleet.down import run_down

    run_down(settings_for(), as_json=as_json)


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show models, replicas and the engine that each replica serves with."""
    from services.cli.fleet.status import run_status

    run_status(settings_for(), as_json=as_json)


@app.command()
def engines(
    model: Annotated[str, typer.Argument(help="Only engines of this model.")] = "",
    store: Store = "",
    as_json: AsJson = False,
) -> None:
    """List published engines: what they are for, their proof, their speed."""
    from services.cli.builds.engines import run_engines

    run_engines(settings_for(store), model, as_json=as_json)


@app.command()
def build(
    name: Annotated[str, typer.Argument(help="Model to build engines for.")],
    generation: Annotated[
        list[str] | None,
        typer.Option(help="For this generation, not this machine's own; may be repeated."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only this engine kind of the recipe's; may be repeated."),
    ] = None,
    store: Store = "",
    as_json: AsJson = False,
) -> None:
    """Build, prove and publish the engines that a model lacks."""
    from services.cli.builds.build import run_build

    raise typer.Exit(
        run_build(settings_for(store), name, generation or [], kind or [], as_json=as_json)
    )


@app.command()
def events(
    model: Annotated[str, typer.Argument(help="Only events of this model, and of hardware.")] = "",
    follow: Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 50,
    store: Store = "",
    as_json: AsJson = False,
) -> None:
    """Show what happened: hardware, models, builds, proofs, and what came to serve."""
    from services.cli.why.events import run_events

    run_events(settings_for(store), model, limit=limit, is_followed=follow, as_json=as_json)


@app.command()
def why(
    name: Annotated[str, typer.Argument(help="Model to explain.")] = "",
    generation: Annotated[str, typer.Option(help="Only this generation.")] = "",
    version: Annotated[int, typer.Option(min=0, help="Which one; 0 is the newest.")] = 0,
    keys: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Compare these two keys, fact by fact, instead."),
    ] = None,
    store: Store = "",
    as_json: AsJson = False,
) -> None:
    """Explain what serves a model on a generation, and why nothing better does."""
    from services.cli.why.why import run_why
    from services.cli.why.why_keys import run_why_keys

    if keys:
        run_why_keys(settings_for(store), keys, as_json=as_json)
        return
    run_why(settings_for(store), name, generation, version=version or None, as_json=as_json)


@app.command()
def profile(
    name: Annotated[str, typer.Argument(help="Model to profile.")],
    version: Annotated[
        int | None, typer.Option(min=1, help="Model version; by default the newest.")
    ] = None,
    bucket: Annotated[
        str, typer.Option(help="Label of one of its buckets; by default the largest.")
    ] = "",
    precision: Annotated[str, typer.Option(help="Of both sides: fp32, fp16, bf16.")] = "fp32",
    source: Annotated[
        str,
        typer.Option(help="PyTorch source to look for graph breaks in: MODULE_OR_FILE.py:FUNCTION"),
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Folder for report, traces and picture.")] = None,
    store: Store = "",
    as_json: AsJson = False,
) -> None:
    """Show what compiling a model changes: kernels, fusion, memory traffic, time per op."""
    from services.cli.builds.profile import options_from, run_profile

    options = options_from(bucket, precision, source, out)
    run_profile(settings_for(store), name, version, options, as_json=as_json)


@app.command()
def buckets(
    name: Annotated[str, typer.Argument(help="Model whose requests are looked at.")],
    version: Annotated[int, typer.Option(min=0, help="Which one; 0 is the newest.")] = 0,
    num: Annotated[int, typer.Option(min=0, help="How many to propose; 0: as now, or 4.")] = 0,
    metrics: Annotated[
        list[str] | None,
        typer.Option(help="host:port of a metrics endpoint, in place of the fleet's; repeatable."),
    ] = None,
    store: Store = "",
    as_json: AsJson = False,
) -> None:
    """Show what sizes requests have, what padding wastes on them, and buckets that waste less."""
    from services.cli.sizes.buckets import run_buckets

    settings, number = settings_for(store), version or None
    run_buckets(settings, name, version=number, num=num, metrics=metrics or (), as_json=as_json)


@app.command("node-labels")
def node_labels(as_json: AsJson = False) -> None:
    """Print what this host's node publishes, for: ray start --labels "$(smelt node-labels)"."""
    from services.cli.fleet.node_labels import run_node_labels

    run_node_labels(as_json=as_json)


@app.command()
def rebuild(
    name: Annotated[str, typer.Argument(help="Model to try again.")],
    generation: Annotated[str, typer.Option(help="Only this generation.")] = "",
    version: Annotated[int, typer.Option(min=0, help="Which one; 0 is the newest.")] = 0,
    reason: Annotated[str, typer.Option(help="Why, for the event.")] = "",
    store: Store = "",
    as_json: AsJson = False,
) -> None:
    """Build again what failed or was given up, and prove again what is published.

    A published engine is never overwritten: its key names everything that changes its bytes, so
    building it again could give no other one. It serves on while it is proven again, and is
    passed over once the new proof fails.
    """
    from services.cli.builds.rebuild import run_rebuild

    settings = settings_for(store)
    run_rebuild(settings, name, generation, reason, version=version or None, as_json=as_json)


@app.command()
def prune(
    older_than: Annotated[
        int, typer.Option(min=1, help="Days; what was written later stays.")
    ] = 30,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete it; without, it is only shown.")
    ] = False,
    store: Store = "",
    as_json: AsJson = False,
) -> None:
    """Show what of the store nothing serves, plans or names any more, and delete it with --yes."""
    from services.cli.builds.prune import run_prune

    run_prune(settings_for(store), older_than_days=older_than, is_confirmed=yes, as_json=as_json)


@app.command()
def infer(
    name: Annotated[str, typer.Argument(help="Model to send it to.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="NAME=@FILE.npy, strings as NAME=@FILE.json or NAME='[\"a\"]'; repeat for each. "
            "Without any, the model's inputs are shown.",
        ),
    ] = None,
    version: Annotated[str, typer.Option(help="Model version; empty is the newest.")] = "",
    address: Annotated[
        str, typer.Option(help="HOST:PORT of a gateway; empty is this host's fleet.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Send one request to a gateway and print its outputs."""
    from services.cli.requests.infer import run_infer

    run_infer(settings_for(), name, inputs or [], version, address, as_json=as_json)


@app.command()
def token(
    name: Annotated[str, typer.Argument(help="Whose token it is; stands in the gateway's log.")],
    verb: Annotated[list[Verb] | None, typer.Option(help="What it may do; infer.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="On which models, with `*`; all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a bearer token for a gateway that has an access file."""
    from services.cli.requests.token import run_token

    run_token(name, verb or [Verb.INFER], model or ["*"], as_json=as_json)


def main() -> None:
    """Entry of the console script."""
    try:
        app()
    except SmeltError as error:
        # The error carries no options of its command; the command line has them.
        if "--json" in sys.argv[1:]:
            print_json_error(type(error).__name__, str(error))
        else:
            print_error(str(error))
        raise SystemExit(1) from error
    except OSError as error:
        # A full disk is no bug: any write may meet it.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print_error(f"{error.strerror}: {error.filename or 'SMELT_HOME'}; make room there")
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
