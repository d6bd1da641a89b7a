"""`smelt up --demo`: the fleet starts, answers at once, and gets better engines while it serves."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import psutil

from compiler_worker.master.fingerprint import fingerprint
from compiler_worker.master.source import source_from_text
from services.cli.demo.loop import DemoLoop
from services.cli.demo.minilm import tokenise
from services.cli.demo.run import (
    MODEL,
    SOURCE,
    Answer,
    Embedder,
    allowed_distance,
    ask,
    embedder,
    expected_embeddings,
)
from services.cli.demo.sentences import QUERIES
from services.cli.demo.traffic import Counts, DemoTraffic
from services.cli.demo.words import answers_words, end_words, served_precision
from services.cli.fleet.child_process import spawn
from services.cli.fleet.control_client import get_fleet, reconcile
from services.cli.fleet.local_fleet import LocalFleet
from services.cli.output.progress import StepLine, Steps
from services.cli.output.show import show
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.cli.why.why import case_text
from services.contracts.errors import NotFoundError, NotReadyError
from services.contracts.events import EventPosition
from services.contracts.model.manifest import ModelVersion
from services.contracts.text.text_table import Table
from services.telemetry.child_log import ChildLog

_ENDS_WITH_US = "services.cli.fleet.pdeathsig_exec"
# A first start may have to compile the fallback: minutes on two busy cores.
_READY_TIMEOUT_S = 900.0
_LEGEND = (
    "x fallback: speed over that of the fallback, which serves without an engine",
    "x eager: speed over that of PyTorch without compilation",
    "?: not measurable, or measured with waits, as other work takes the processors",
)


def run_demo(fleet: LocalFleet) -> bool:
    """Start a fleet, and show how its model comes to be served by a proven engine.

    Returns:
        Whether no request failed, and every answer matches sentence-transformers'.

    Raises:
        SmeltError: the fleet does not start, or the model cannot be served.
    """
    settings = fleet.settings
    # From the process's own start: imports have taken a moment by now.
    step = Steps().step("Demo", time.time() - psutil.Process().create_time())
    with step as line, ExitStack() as held:
        position = _event_end(settings)
        version = _start(fleet, line)
        client = held.enter_context(embedder(settings, fleet.running.grpc_address))
        traffic = held.enter_context(_traffic(fleet, client))
        look = partial(get_fleet, fleet.running.controller, settings)
        loop = DemoLoop(settings, open_registry(settings), version, look, line, traffic)
        cases = loop.follow(position)
        line.event(end_words(cases))
        # Of several generations any may answer.
        distance = max(allowed_distance(served_precision(case)) for case in cases)
        answers = ask(settings, client, distance)
        counts = traffic.counts()
        end_s = line.event("the answers are compared with sentence-transformers'")
    document = {
        "answers": [vars(answer) for answer in answers],
        "generations": cases,
        "requests": vars(counts),
        "seconds": {
            "first_answer": loop.first_answer_s,
            "first_proven_answer": loop.first_proven_s,
            "end": end_s,
        },
    }
    show(document, _text(version, answers, cases, counts))
    return counts.num_failed == 0 and all(answer.is_matched for answer in answers)


def _start(fleet: LocalFleet, line: StepLine) -> ModelVersion:
    """Have the fleet up and the model published."""
    settings = fleet.settings
    with publishing(settings) as published:
        line.wait("starting the fleet; exporting the model")
        fleet.start()
        line.event(f"the fleet is up, and its gateway listens on {fleet.running.grpc_address}")
        line.wait("exporting the model")
        # Five seconds: beside the export, and neither at the end nor beside a timing.
        expected_embeddings(settings)
        published()
    reconcile(fleet.running.controller, settings)
    version = open_registry(settings).model_version(MODEL)
    line.event(f"{version.name} version {version.version} is published")
    line.wait("waiting for the first answer")
    return version


def _event_end(settings: CliSettings) -> EventPosition:
    """Where the events of this run will stand after."""
    try:
        return open_registry(settings).event_end()
    except NotFoundError:
        return EventPosition()


def _traffic(fleet: LocalFleet, client: Embedder) -> DemoTraffic:
    return DemoTraffic(
        partial(fleet.wait_model_ready, MODEL, _READY_TIMEOUT_S),
        partial(client.embed, tokenise(QUERIES)),
    )


def _text(
    version: ModelVersion, answers: list[Answer], cases: list[dict[str, Any]], counts: Counts
) -> Iterator[str | Table]:
    for case in cases:
        for part in case_text(case, version, is_brief=True):
            # Of a terminal's width, with the speed over eager in place of digests.
            yield part._replace(wide=("engine",)) if isinstance(part, Table) else part
    yield from _LEGEND
    yield f"proofs, bounds, and why kinds are skipped: smelt why {version.name}"
    yield from answers_words(answers)
    yield f"{counts.words}."
    if counts.last_fault:
        yield f"the last failure: {counts.last_fault}"


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
