"""The command `smelt`: every sub-command and its options.

Errors raised on purpose end with one line, or with --json one document, on standard error and
exit code 1; anything else is a bug and shows its traceback. Imports that cost time sit inside
the commands that need them.
"""

import errno
import sys
from pathlib import Path
from typing import Annotated

try:
    import typer
except ModuleNotFoundError as error:
    # Every installation has the script, also one of a gateway's packages alone.
    raise SystemExit(f"smelt: {error}: the command line needs pip install 'smelt[cli]'") from error

from services.cli.main_bench import bench_app
from services.cli.main_builds import builds_app
from services.cli.main_export import export_app
from services.cli.main_host import host_app
from services.cli.main_models import models_app
from services.cli.main_options import (
    CommandGroup,
    GatewayWorkers,
    HttpPort,
    MeasuredVersion,
    Store,
    complete_commands,
    has_tables,
    model_argument,
    settings_for,
)
from services.cli.main_plan import plan_app
from services.cli.main_recipe import recipe_app
from services.cli.main_samples import samples_app
from services.cli.output.show import INTERRUPTED, print_failure, print_line
from services.contracts.errors import SmeltError
from services.gateway.access.verbs import Verb

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
# Without a name: their commands are `smelt`'s own.
app.add_typer(host_app)
app.add_typer(builds_app)
app.add_typer(bench_app)
app.add_typer(plan_app)
app.add_typer(models_app, name="models")
app.add_typer(recipe_app, name="recipe")
app.add_typer(samples_app, name="samples")
app.add_typer(export_app, name="export")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        python = ".".join(map(str, sys.version_info[:3]))
        print_line(f"smelt {version('smelt')} (Python {python})")
        raise typer.Exit


@app.callback(epilog="Example: smelt up --demo")
def smelt(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of Smelt and Python, and exit.",
        ),
    ] = False,
) -> None:
    """Compile ONNX models for each GPU or CPU, check the results, serve the fastest that passes."""


@app.command(epilog="Example: smelt up --detach")
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
    http_port: HttpPort = None,
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
) -> None:
    """Start a fleet on this host and serve until Ctrl-C."""
    from services.cli.fleet.up import run_up
    from services.cli.fleet.up_options import UpOptions

    options = UpOptions(
        grpc_port=grpc_port,
        http_port=http_port,
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
        )
    )


@app.command(epilog="Example: smelt down")
def down() -> None:
    """Stop the fleet of this host; requests in flight finish."""
    from services.cli.fleet.down import run_down

    run_down(settings_for())


@app.command(epilog="Example: smelt status ranker --wide")
@has_tables
def status(model: Annotated[str, model_argument("Only this model.")] = "") -> None:
    """Show models, replicas and the engine that each replica serves with."""
    from services.cli.fleet.status import run_status

    run_status(settings_for(), model)


@app.command(epilog="Example: smelt events ranker --follow")
@has_tables
def events(
    model: Annotated[str, model_argument("Only events of this model, and of hardware.")] = "",
    follow: Annotated[bool, typer.Option("--follow", help="Follow until Ctrl-C.")] = False,
    limit: Annotated[
        int,
        typer.Option(
            min=1, help="At most so many, the newest; as many are searched, at least 2000."
        ),
    ] = 50,
    store: Store = "",
) -> None:
    """Show what happened: hardware, models, builds, proofs, and what came to serve."""
    from services.cli.why.events import run_events

    run_events(settings_for(store), model, limit=limit, is_followed=follow)


@app.command(epilog="Example: smelt why ranker --generation cuda-sm90")
@has_tables
def why(
    name: Annotated[str, model_argument("Model to explain.")] = "",
    generation: Annotated[str, typer.Option(help="Only this generation.")] = "",
    version: MeasuredVersion = 0,
    keys: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Compare these two keys, fact by fact, instead."),
    ] = None,
    store: Store = "",
) -> None:
    """Explain what serves a model on a generation, and why nothing better does."""
    from services.cli.why.why import run_why
    from services.cli.why.why_keys import run_why_keys

    settings = settings_for(store)
    number = version or None
    if keys:
        run_why_keys(settings, keys)
        return
    run_why(settings, name, generation, version=number)


@app.command(epilog="Example: smelt buckets ranker --num 4")
@has_tables
def buckets(
    name: Annotated[str, model_argument("Model whose requests are looked at.")],
    version: MeasuredVersion = 0,
    num: Annotated[int, typer.Option(min=0, help="How many to propose; 0: as now, or 4.")] = 0,
    metrics: Annotated[
        list[str] | None,
        typer.Option(help="host:port of a metrics endpoint, in place of the fleet's; repeatable."),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Publish the next version, with these buckets.")
    ] = False,
    store: Store = "",
) -> None:
    """Show what sizes requests have, what padding wastes on them, and buckets that waste less."""
    from services.cli.sizes.buckets import run_buckets

    settings = settings_for(store)
    number = version or None
    run_buckets(settings, name, version=number, num=num, metrics=metrics or (), is_applied=apply)


@app.command("node-labels", epilog="Example: smelt node-labels")
def node_labels() -> None:
    """Print what this host's node publishes, for: ray start --labels "$(smelt node-labels)"."""
    from services.cli.fleet.node_labels import run_node_labels

    run_node_labels()


@app.command(epilog="Example: smelt infer ranker --input ids=@ids.npy --input mask=@mask.npy")
@has_tables
def infer(
    name: Annotated[str, model_argument("Model to send it to.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="NAME=@FILE.npy, or JSON: NAME=@FILE.json, NAME='[[1, 2]]', NAME='[\"a\"]'; "
            "repeat for each. Without any, the model's inputs are shown.",
        ),
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Option(
            "--text",
            help="A text, for a model that has a tokenizer; repeat for each, of pairs for both.",
        ),
    ] = None,
    version: Annotated[str, typer.Option(help="Model version; empty is the newest.")] = "",
    address: Annotated[
        str, typer.Option(help="HOST:PORT of a gateway; empty is this host's fleet.")
    ] = "",
) -> None:
    """Send one request to a gateway and print its outputs."""
    from services.cli.requests.infer import run_infer

    settings = settings_for()
    run_infer(settings, name, inputs or [], version, address, texts=texts or ())


@app.command(epilog="Example: smelt token alice --verb infer --model 'ranker*'")
def token(
    name: Annotated[str, typer.Argument(help="Caller name, written to the access log.")],
    verb: Annotated[
        list[Verb] | None, typer.Option(help="Permitted verb (default: infer).")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Model name pattern (default: `*`).")
    ] = None,
) -> None:
    """Make a bearer token for a gateway that has an access file."""
    from services.cli.requests.token import run_token

    run_token(name, verb or [Verb.INFER], model or ["*"])


def main() -> None:
    """Entry of the console script; raises SystemExit(1) for a SmeltError or a disk's fault."""
    try:
        app()
    except SmeltError as error:
        print_failure(type(error).__name__, str(error))
        raise SystemExit(1) from error
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            # Typer has raised it for a KeyboardInterrupt, on which a command notes what is so now.
            notes = getattr(getattr(ended.__context__, "__cause__", None), "__notes__", ())
            print_failure("Interrupted", "; ".join(("interrupted", *notes)))
        raise
    except OSError as error:
        if not (words := _disk_words(error)):
            raise
        print_failure(type(error).__name__, words)
        raise SystemExit(1) from error


def _disk_words(error: OSError) -> str:
    """What to do about a full disk, or a home that cannot be used, which are no bugs; else ""."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}: {error.filename or 'SMELT_HOME'}; free disk space there"
    from services.cli.settings import ANOTHER_HOME, CliSettings

    home = CliSettings().home
    path = Path(str(error.filename))
    # What cannot be made may be a folder above.
    is_of_home = path.is_relative_to(home) or (path.is_absolute() and home.is_relative_to(path))
    is_refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
    is_lost = is_of_home and (is_refused or not home.is_dir())
    return f"{error.strerror}: {path}; {ANOTHER_HOME}" if is_lost else ""


complete_commands(app)

if __name__ == "__main__":
    main()
