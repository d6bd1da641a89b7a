"""Runs the commands of a page in a real shell, as a reader would type them."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.process_server import environment_of_forks
from tests.unit.docs.markdown import ROOT, blocks

# Whatever a page started ends with its shell, also where a command of it failed.
_END = "trap 'set +e; smelt down >/dev/null 2>&1; kill $(jobs -p) 2>/dev/null; wait' EXIT"
_QUICK = {
    "SMELT_NUM_THREADS": "1",
    "SMELT_BENCHMARK_S": "0.02",
    "SMELT_CONTROLLER_REPLICA_NUM_THREADS": "1",
    "SMELT_CONTROLLER_RESYNC_S": "2",
}
# Generous, because it only ends a page that hangs.
_WAIT_S = 800


def page(name: str) -> Path:
    return ROOT / "docs" / "tutorials" / name


def commands(page: Path, changes: Mapping[str, str]) -> str:
    """All its blocks `sh`, but for those to `skip`; each change must be of something in it."""
    return changed("\n".join(b.text for b in blocks(page) if b.words == "sh"), changes)


def write_files(page: Path, folder: Path, changes: Mapping[str, str]) -> None:
    """Its blocks that begin with a file's name, as comment."""
    for block in blocks(page):
        if named := re.match(r"# ([\w.]+)\n", block.text):
            (folder / named[1]).write_text(changed(block.text, changes, is_partial=True))


def changed(text: str, changes: Mapping[str, str], *, is_partial: bool = False) -> str:
    for old, new in changes.items():
        assert is_partial or old in text, f"the page has no {old}"
        text = text.replace(old, new)
    return text


@contextmanager
def smelt_home() -> Iterator[Path]:
    """Not in pytest's own temporary folder: the path of a unix socket holds 107 bytes."""
    home = Path(tempfile.mkdtemp(prefix="smelt-"))
    try:
        yield home
    finally:
        shutil.rmtree(home)


def run(script: str, folder: Path, home: Path) -> str:
    """What it printed; it must succeed."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{_END}\n{script}"],
        cwd=folder,
        env=os.environ | environment_of_forks() | _QUICK | {"PATH": path, "SMELT_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
