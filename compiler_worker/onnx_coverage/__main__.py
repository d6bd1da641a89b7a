"""Writes COVERAGE.md: `python -m compiler_worker.onnx_coverage [FOLDER]`.

The folder is the repository's root by default.
"""

import sys
from pathlib import Path

from compiler_worker.onnx_coverage.cases import all_cases
from compiler_worker.onnx_coverage.outcomes import outcome
from compiler_worker.onnx_coverage.report import COVERAGE_FILE, coverage_text


def main(argv: list[str]) -> int:
    """Run the suite and write the file below a folder; the process's exit status."""
    cases = all_cases()
    fixed = {case.name: outcome(case) for case in cases}
    dynamic = {case.name: outcome(case, is_dynamic=True) for case in cases}
    path = (Path(argv[0]) if argv else Path()) / COVERAGE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(coverage_text(cases, fixed, dynamic))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
