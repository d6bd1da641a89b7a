"""`smelt report`: one HTML file about a model version, from what the store holds."""

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

from services.cli.output.show import show
from services.cli.planning.plan_profile import PlanProfile
from services.cli.registry import open_registry
from services.cli.report.report_document import report_document
from services.cli.report.report_page import report_page
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError


def run_report(
    settings: CliSettings,
    name: str,
    version: int | None = None,
    *,
    output: Path | None,
    prices: Path | None,
    as_json: bool,
) -> None:
    """Write the file and say where it is.

    Args:
        settings: of the command line.
        name: of the model.
        version: the newest by default.
        output: the file; None names one after the model, in the current folder.
        prices: profile of `smelt plan`, of which the prices count; None for none.
        as_json: print what the page was made of.

    Raises:
        NotFoundError: no such model or version.
        InvalidRequestError: the prices cannot be read, or the file cannot be written.
    """
    offers = PlanProfile.from_file(prices).devices if prices else {}
    registry = open_registry(settings)
    found = registry.model_version(name, version)
    path = output or Path(f"{found.name}-v{found.version}.html")
    document = report_document(settings, registry, found, offers) | {
        "command": shlex.join(["smelt", *sys.argv[1:]]),
        "reported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "file": str(path),
    }
    try:
        path.write_text(report_page(document, found), encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(
            f"--output {path}: cannot be written: {error.strerror}"
        ) from error
    where = f"{name} version {found.version}: {path}"
    show(document, [where], as_json=as_json)
