"""The commands `smelt plan`, `smelt advise` and `smelt report`, and their options."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.main_options import (
    MeasuredVersion,
    Store,
    has_tables,
    model_argument,
    settings_for,
)

plan_app = typer.Typer()


@plan_app.command(epilog="Example: smelt plan profile.yaml --what-if traffic=2")
@has_tables
def plan(
    profile: Annotated[
        Path, typer.Argument(help="YAML: requests of each model, devices and their prices.")
    ],
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="traffic=2, generation=cuda-sm89, precision=fp32, nodes_lost=0; repeat for more.",
        ),
    ] = None,
    store: Store = "",
) -> None:
    """Size a fleet: devices of each generation, their cost, and what engines save.

    Measured times of the engines in the store, a simulated queue for each model's p99, and the
    cheapest devices that carry every hour with nodes to spare.
    """
    from services.cli.planning.plan import run_plan

    run_plan(settings_for(store), profile, what_if or ())


@plan_app.command(epilog="Example: smelt advise ranker --generation cuda-sm90")
@has_tables
def advise(
    model: Annotated[
        str, model_argument("Model to advise on; without one, how well past advice did for all.")
    ] = "",
    generation: Annotated[
        str, typer.Option(help="Generation; by default those that the store has plans for.")
    ] = "",
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Time here what needs no build: 10 to 20 s of all cores."),
    ] = False,
    store: Store = "",
) -> None:
    """Say which engine to try first, how fast it should be, and where Smelt is the wrong tool.

    By the model's graph, sampled requests, what was measured before, and the proofs of other
    models in the store; beside it stands what was proven. Needs no fleet and writes nothing.
    """
    from services.cli.advise.advise import run_advise

    run_advise(settings_for(store), model, generation, is_measured=measure)


@plan_app.command(epilog="Example: smelt report ranker --output ranker.html --prices profile.yaml")
def report(
    model: Annotated[str, model_argument("Model to report on.")],
    output: Annotated[
        Path | None, typer.Option(show_default="MODEL-vN.html", help="Write the page here.")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="YAML: devices and their prices, as smelt plan takes them.")
    ] = None,
    version: MeasuredVersion = 0,
    store: Store = "",
) -> None:
    """Write all that the store holds of a model as one HTML page, which loads no other file.

    By generation: eager, fallback and engines with latency, rows/s and memory, which serves and
    why, accuracy beside its limits, builds, cost, roofline, and advice beside its outcome.
    """
    from services.cli.report.report import run_report

    settings = settings_for(store)
    number = version or None
    run_report(settings, model, number, output=output, prices=prices)
