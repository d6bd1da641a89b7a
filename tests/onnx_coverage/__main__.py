"""Runs ONNX's own test suite through the importer and writes COVERAGE.md."""

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.onnx_coverage.cases import all_cases
from tests.onnx_coverage.coverage_report import COVERAGE_FILE, coverage_text
from tests.onnx_coverage.outcomes import outcome


def main(argv: list[str]) -> int:
    """Run the suite and write the file below a folder; the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_coverage", description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(), help="the repository's root, by default ."
    )
    folder: Path = parser.parse_args(argv).folder
    cases = all_cases()
    fixed = {case.name: outcome(case) for case in cases}
    dynamic = {case.name: outcome(case, is_dynamic=True) for case in cases}
    path = folder / COVERAGE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(coverage_text(cases, fixed, dynamic))
    counts = Counter(found.verdict for found in fixed.values())
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    sys.stdout.write(f"{path}: {summary}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
