"""Writes rules and boards: `python -m services.telemetry.boards [FOLDER]`.

The folder is the repository's root by default; `.ci/generate` calls this.
"""

import sys
from pathlib import Path

from services.telemetry.boards.files import generated_files


def main(argv: list[str]) -> int:
    """Write every generated file below a folder; the process's exit status."""
    root = Path(argv[0]) if argv else Path()
    for name, text in generated_files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
