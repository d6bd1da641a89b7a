"""Options that many sub-commands have, and the settings that come of them."""

from typing import TYPE_CHECKING, Annotated

import typer

from services.gateway.workers.limits import MAX_WORKERS

if TYPE_CHECKING:
    from services.cli.settings import CliSettings

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
GatewayWorkers = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_WORKERS,
        show_default="SMELT_GATEWAY_WORKERS, or 1",
        help="Gateway processes that share the port; each has bounds and a cache of its own.",
    ),
]
Wide = Annotated[
    bool, typer.Option("--wide", help="Show every column, however wide the lines become.")
]
Store = Annotated[str, typer.Option("--store", help="Artifact store: a folder or s3:// URL.")]


def settings_for(store: str = "") -> "CliSettings":
    """Settings of the environment, with another store where one is named."""
    from services.cli.settings import CliSettings
    from services.contracts.process.settings import read_settings

    return read_settings(CliSettings, **({"store_url": store} if store else {}))
