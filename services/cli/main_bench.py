"""The command `smelt bench` and its options."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.main_options import Store, has_tables, model_argument, settings_for

bench_app = typer.Typer()


@bench_app.command(epilog="Example: smelt bench ranker --concurrency 1,8 --html ranker.html")
@has_tables
def bench(
    name: Annotated[str, model_argument("Model to put load on.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="As for smelt infer, in place of random ones; repeat for each."
        ),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIM=N,...",
            show_default="a row, a usual and the largest request of its buckets",
            help="Of a request's random inputs, as in batch=8,sequence=128; repeat for more.",
        ),
    ] = None,
    concurrency: Annotated[
        str, typer.Option(help="Numbers of callers, one after the other.")
    ] = "1,8,32",
    seconds: Annotated[
        float, typer.Option(min=0.1, help="For each size and number of callers.")
    ] = 5.0,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page with plots here: one file, which loads no other."),
    ] = None,
    version: Annotated[
        int, typer.Option(min=0, help="Model version; 0 leaves it to the gateway.")
    ] = 0,
    address: Annotated[
        str, typer.Option(help="HOST:PORT of a gateway; empty is this host's fleet.")
    ] = "",
    store: Store = "",
) -> None:
    """Measure a served model under load: requests per second, latencies and errors.

    Inputs are random, of values that the model accepts. Each caller sends its next request when its
    last one has ended. The exit code is 1 when a request failed.
    """
    from services.cli.bench.bench import BenchOptions, run_bench

    options = BenchOptions(
        version=version,
        address=address,
        inputs=inputs or [],
        sizes=sizes or [],
        concurrency=concurrency,
        seconds=seconds,
        html=html,
    )
    settings = settings_for(store)
    raise typer.Exit(run_bench(settings, name, options))
