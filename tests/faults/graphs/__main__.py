"""Fuzzes the importer, the exported programs, the rewrites and Inductor with random graphs.

    python -m tests.faults.graphs --count 20000 [--seed 0] [--compile 300] [--seconds 3600]

Every graph comes of the seed and its number, so what a run finds another one shows again. It is
equal (what each stage answers is what ONNX Runtime or ONNX's evaluator does, at all sizes),
refused with a reason, or wrong. Wrong ones are made small and written to a folder, and the
status is 1.
"""

import argparse
import importlib.metadata
import platform
import sys
from pathlib import Path

from tests.faults.graphs.run import Run, run_parts
from tests.faults.graphs.worker import Part

_PACKAGES = ("torch", "onnx", "onnxruntime", "numpy")


def table(run: Run) -> str:
    """What became of the graphs, and why some were refused."""
    lines = ["| what | last stage | graphs |", "|---|---|---:|"]
    lines += [f"| {kind} | {stage} | {n:,} |" for (kind, stage), n in sorted(run.reached.items())]
    lines += ["", "| refused at | reason | graphs |", "|---|---|---:|"]
    lines += [f"| {stage} | {reason} | {n:,} |" for (stage, reason), n in run.refused.most_common()]
    lines += ["", "| where the two arbiters differ, the importer answers | graphs |", "|---|---:|"]
    lines += [f"| {words} | {n:,} |" for words, n in run.differing.most_common()]
    nodes = run.num_nodes / max(run.count, 1)
    return "\n".join(lines) + (
        f"\n\n{run.count:,} graphs of {nodes:.1f} nodes in {run.duration_s:.0f} s; ONNX Runtime "
        f"ended the process in {run.num_ended}; wrong: {len(run.faults)}.\n"
    )


def main() -> int:
    """Read the arguments, fuzz, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first graph")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", type=int, default=0, help="how many Inductor compiles")
    parser.add_argument("--export-every", type=int, default=1, help="1: export all graphs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after these")
    parser.add_argument("--folder", default="wrong_graphs", help="where wrong graphs are written")
    parser.add_argument("--write", type=Path, help="also write the tables to this file")
    given = parser.parse_args()
    whole = Part(
        seed=given.seed,
        first=given.first,
        count=given.count,
        compile_every=max(given.count // given.compile, 1) if given.compile else 0,
        export_every=given.export_every,
        folder=given.folder,
    )
    run = run_parts(whole, given.seconds)
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    text = f"CPython {platform.python_version()}, {found}\n\n{table(run)}"
    print(text)
    print("\n".join(run.faults))
    if given.write:
        given.write.write_text(text)
    return int(bool(run.faults))


if __name__ == "__main__":
    sys.exit(main())
