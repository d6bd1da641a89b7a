"""Writes the reference from the code: `python -m tests.reference [FOLDER]`.

The folder is the repository's root by default; `.ci/generate` calls this.
"""

import sys
from pathlib import Path

from tests.reference.pages import reference_pages

root = Path(sys.argv[1] if len(sys.argv) > 1 else "")
for name, text in reference_pages().items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
