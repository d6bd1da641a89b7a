"""Runs workers over graphs and counts what became of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tests.faults.graphs.worker import Part

Line = dict[str, Any]
# A worker's compiled code and its compilers' caches are given back after so many graphs.
_AT_ONCE = 4000


@dataclass
class Run:
    """Counts over a run.

    Attributes:
        reached: graphs by kind of verdict and the stage they came to.
        refused: by stage and reason.
        differing: by op, where ONNX Runtime and the evaluator differ and the importer agrees
            with one of them.
        faults: what is wrong, a line for each.
    """

    reached: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    differing: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    num_nodes: int = 0
    num_ended: int = 0
    duration_s: float = 0.0

    @property
    def count(self) -> int:
        return self.reached.total()

    def add(self, seed: int, line: Line) -> None:
        """Count one graph."""
        stage = str(line["stage"])
        self.reached[line["kind"], stage] += 1
        self.num_nodes += line["ops"]
        self.differing.update({note.split(":")[0] for note in line["notes"]})
        if line["kind"] == "refused":
            self.refused[stage, line["reason"]] += 1
        if line["kind"] == "wrong":
            self.faults.append(f"{seed}-{line['index']} {stage}: {line['reason']}")


def run_parts(whole: Part, seconds: float) -> Run:
    """Judge graphs one after the other, until all are or the time is over."""
    run, begin = Run(), time.monotonic()
    for line in _lines(whole, run):
        run.add(whole.seed, line)
        run.duration_s = time.monotonic() - begin
        if run.duration_s > seconds:
            break
    return run


def _lines(whole: Part, run: Run) -> Iterator[Line]:
    next_one, end = whole.first, whole.first + whole.count
    while next_one < end:
        part = replace(whole, first=next_one, count=min(_AT_ONCE, end - next_one))
        for line in _worked(part):
            next_one += 1
            yield line
        if next_one < part.first + part.count:
            run.num_ended += 1
            yield _again(replace(part, first=next_one, count=1, has_runtime=False))
            next_one += 1


def _worked(part: Part) -> Iterator[Line]:
    """What a worker says until it is done, or a library ends it by a signal.

    Raises:
        CalledProcessError: the worker itself fails; its command says at what.
    """
    command = [sys.executable, "-m", "tests.faults.graphs.worker", json.dumps(asdict(part))]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as worker:
        assert worker.stdout is not None
        try:
            yield from map(json.loads, worker.stdout)
            if (code := worker.wait()) > 0:
                raise subprocess.CalledProcessError(code, command)
        finally:
            worker.kill()


def _again(part: Part) -> Line:
    """The graph at which a worker ended, without ONNX Runtime."""
    ended = {"kind": "wrong", "stage": "imported", "reason": "it ends the process"}
    nothing = {"index": part.first, "ops": 0, "notes": []}
    return next(_worked(part), ended | nothing)
