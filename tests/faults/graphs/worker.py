"""Judges graphs in a process of its own: a library that ends the process ends no run.

One line of JSON on standard output for each graph, in order.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from tests.faults.graphs.cases import grown
from tests.faults.graphs.judge import Stage, Verdict, judged
from tests.faults.graphs.shrink import shrunk, write


@dataclass(frozen=True, kw_only=True)
class Part:
    """Which graphs to judge.

    Attributes:
        compile_every: one in so many goes through Inductor; 0 for none.
        export_every: one in so many is exported and rewritten.
        folder: for wrong graphs; "" for none.
        has_runtime: False after ONNX Runtime ended a process.
    """

    seed: int
    first: int
    count: int
    compile_every: int = 0
    export_every: int = 1
    folder: str = ""
    has_runtime: bool = True

    def last_stage(self, index: int) -> Stage:
        """How far a graph goes."""
        if self.compile_every and index % self.compile_every == 0:
            return "compiled"
        return "imported" if index % self.export_every else "rewritten"


def judged_part(part: Part) -> None:
    """Judge one graph after the other."""
    for index in range(part.first, part.first + part.count):
        stage = part.last_stage(index)
        case = grown(part.seed, index)
        verdict = judged(case, stage, has_runtime=part.has_runtime)
        line = asdict(verdict) | {"index": index, "ops": len(case.model.graph.node)}
        if verdict.kind == "wrong" and part.folder:
            # What ended a process once would end this one.
            again = partial(judged, last=stage, has_runtime=part.has_runtime)
            small = shrunk(case, lambda c, again=again, v=verdict: _is_as_wrong(again(c), v))
            reason = again(small).reason
            write(small, Path(part.folder), f"{part.seed}-{index}", f"{verdict.stage}: {reason}")
        print(json.dumps(line), flush=True)


def _is_as_wrong(verdict: Verdict, before: Verdict) -> bool:
    """At the same stage, and an error where there was one."""
    is_same = ("Error: " in verdict.reason) == ("Error: " in before.reason)
    return verdict.kind == "wrong" and verdict.stage == before.stage and is_same


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    judged_part(Part(**json.loads(sys.argv[1])))
