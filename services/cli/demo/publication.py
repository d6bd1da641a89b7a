"""Adds the demo's model by a process of its own, as a person would, while the fleet starts."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compiler_worker.master.fingerprint import fingerprint
from compiler_worker.master.source import source_from_text
from services.cli.demo.run import MODEL, SOURCE
from services.cli.fleet.child_process import spawn
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.contracts.errors import NotFoundError, NotReadyError
from services.telemetry.child_log import ChildLog

_ENDS_WITH_US = "services.cli.fleet.pdeathsig_exec"


@contextmanager
def publishing(settings: CliSettings) -> Iterator[Callable[[], None]]:
    """Export and publish the model; what is yielded waits until it is.

    One that is published already, of this very source, takes no process: the fleet that starts
    meanwhile needs the processors.
    """
    if _is_published(settings):
        yield lambda: None
        return
    log = ChildLog.from_here(settings.run_dir / "demo-model.log")
    command = ["-m", "services.cli.main", "models", "add", MODEL, SOURCE]
    command = [sys.executable, *command, "--store", settings.store_url]
    process = spawn(
        [sys.executable, "-m", _ENDS_WITH_US, str(os.getpid()), *command], os.environ, log.path
    )

    def wait() -> None:
        if process.wait():
            raise NotReadyError(f"model '{MODEL}': {log.last_words()}; its log: {log.path}")

    try:
        yield wait
    finally:
        process.kill()
        process.wait()


def _is_published(settings: CliSettings) -> bool:
    try:
        newest = open_registry(settings).model_version(MODEL)
    except NotFoundError:
        return False
    return newest.source_fingerprint == fingerprint(source_from_text(SOURCE))
