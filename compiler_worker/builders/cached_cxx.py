"""A C++ compiler that remembers: run as a program, with the standard library alone.

    python -I -S cached_cxx.py FOLDER COMPILER ARGUMENT...

An object is found by its source without whole-line comments (they hold paths, and nothing that
is compiled), its flags without paths, and the compiler's version. Which headers lie behind the
paths is not looked at: a folder is for one version of torch. A precompiled header takes longer
than what it is for, so it is made when the first object is really compiled.

What is kept is named by its own digest too. A damaged object is compiled again; a folder that
cannot be written costs time and no build.
"""

import contextlib
import hashlib
import itertools
import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

_LATER = ".later"


def main(arguments: Sequence[str]) -> int:
    """Compile, or do what the compiler does with any other command; the exit code."""
    folder, compiler, *rest = arguments
    command = [compiler, *rest]
    sources = [word for word in rest if word.endswith(".cpp") and not word.startswith("-")]
    if "-c" in rest and "-o" in rest and len(sources) == 1:
        return _compile(Path(folder), command, Path(sources[0]))
    if "c++-header" in rest and "-o" in rest:
        Path(_output(command) + _LATER).write_text(json.dumps(command))
        return 0
    return subprocess.run(command, check=False).returncode


def _compile(folder: Path, command: list[str], source: Path) -> int:
    key = _key(command, source)
    target = Path(_output(command))
    with contextlib.suppress(OSError):  # tidied away meanwhile, or not ours to remove
        for known in folder.glob(f"{key}-*.o"):
            data = known.read_bytes()
            if known.name == _name(key, data):
                target.write_bytes(data)
                return 0
            sys.stderr.write(f"{known} is damaged; compiled again\n")
            known.unlink(missing_ok=True)
    _precompile(command)
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        with contextlib.suppress(OSError):
            _keep(folder, key, target.read_bytes())
    return code


def _precompile(command: list[str]) -> None:
    """Make the header of this command that was put off; whole or not at all."""
    for header in _values(command, "-include"):
        later = Path(f"{header}.gch{_LATER}")
        target = Path(f"{header}.gch")
        if target.exists() or not later.exists():
            continue
        part = f"{target}.{uuid.uuid4().hex}"
        put_off = [part if word == str(target) else word for word in json.loads(later.read_text())]
        # Without it the object takes longer, and is the same.
        if subprocess.run(put_off, check=False).returncode == 0:
            Path(part).replace(target)


def _keep(folder: Path, key: str, data: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{uuid.uuid4().hex}"
    part.write_bytes(data)
    part.replace(folder / _name(key, data))


def _key(command: list[str], source: Path) -> str:
    lines = source.read_text(errors="surrogateescape").splitlines()
    code = "\n".join(line for line in lines if not line.startswith("//"))
    included = [Path(header).read_text() for header in _values(command, "-include")]
    version = subprocess.run([command[0], "--version"], capture_output=True, check=False).stdout
    facts = [_flags(command, source), included, code, version.decode(errors="replace")]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _flags(command: list[str], source: Path) -> list[str]:
    """The arguments that are no path."""
    paths = {str(source), _output(command), *_values(command, "-include")}
    return [word for word in command[1:] if word not in paths and not word.startswith("-I")]


def _output(command: list[str]) -> str:
    return _values(command, "-o")[0]


def _values(command: list[str], option: str) -> list[str]:
    pairs = itertools.pairwise(command)
    return [value for word, value in pairs if word == option]


def _name(key: str, data: bytes) -> str:
    return f"{key}-{hashlib.sha256(data).hexdigest()}.o"


def launcher(folder: Path, compiler: str) -> Path:
    """A program named as the compiler that runs it with this folder; in a place that stays.

    Its path is part of the names that torch gives to precompiled headers.
    """
    target = folder.with_name(f"{folder.name}-bin") / Path(compiler).name
    target.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-I", "-S", __file__, str(folder), shutil.which(compiler) or compiler]
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
    part = target.with_name(f".{uuid.uuid4().hex}")
    part.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
    part.chmod(0o755)
    part.replace(target)
    return target


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
