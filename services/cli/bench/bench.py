"""`smelt bench`: load over the served protocol, as tables, a document and a page.

What can be refused at once is, before `bench_run` imports what sends and measures.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from services.cli.fleet.fleet_file import require_fleet
from services.cli.output.progress import Steps
from services.cli.output.show import INTERRUPTED, show
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError, NotFoundError


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of the command, word for word."""

    version: int
    address: str
    inputs: list[str]
    sizes: list[str]
    concurrency: str
    seconds: float
    html: Path | None


def run_bench(settings: CliSettings, name: str, options: BenchOptions) -> int:
    """Send each load to the model and print what was measured.

    Args:
        settings: where store and fleet are.
        name: of the model.
        options: loads, inputs and gateway; without an address, this host's fleet is measured.

    Returns:
        The exit code: 1 when a request failed, 130 when Ctrl-C ended it.

    Raises:
        InvalidRequestError: an option is malformed, or the page cannot be written.
        NotFoundError: no fleet runs here, or the store that inputs are drawn by lacks the model.
        SmeltError: the gateway's refusal, in the class that its status means.
    """
    running = None if options.address else require_fleet(settings.run_dir)
    if running:
        settings = settings.model_copy(update={"store_url": running.store_url})
        options = replace(options, address=running.grpc_address)
    if options.html is not None:
        _check_writable(options.html)
    with Steps().step(f"Load on {name}") as line:
        import uvloop

        from services.cli.bench.bench_report import INTERRUPTION, bench_text
        from services.cli.bench.bench_run import run_loads
        from services.cli.requests.infer import known_models

        try:
            document = uvloop.run(run_loads(settings, name, options, line))
        except NotFoundError as error:
            raise NotFoundError(f"{error}{known_models(settings, running, name)}") from error
    show(document, bench_text(document))
    if options.html is not None and document["cells"]:
        from services.cli.bench.bench_page import bench_page

        options.html.write_text(bench_page(document), encoding="utf-8")
    if document["ended"] == INTERRUPTION:
        return INTERRUPTED
    return int(bool(document["ended"]) or any(cell["errors"] for cell in document["cells"]))


def _check_writable(path: Path) -> None:
    # Before the load, which takes minutes; one that fails leaves no empty page.
    is_new = not path.exists()
    try:
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise InvalidRequestError(f"--html {path}: cannot be written: {error.strerror}") from error
