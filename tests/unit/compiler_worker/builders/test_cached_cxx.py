"""A compiler that remembers: same objects, never a wrong one, and nothing that can break it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from compiler_worker.builders.cached_cxx import launcher

REAL = shutil.which("g++") or ""
pytestmark = pytest.mark.skipif(not REAL, reason="no g++ on PATH")


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """A compiler that writes down what it is asked to do."""
    program = tmp_path / "real" / "g++"
    program.parent.mkdir()
    log = tmp_path / "log"
    log.touch()
    program.write_text(f'#!/bin/sh\necho "$*" >> {log}\nexec {REAL} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "shared" / "scope"


@pytest.fixture
def cxx(folder: Path, counted: Path) -> Path:
    folder.parent.mkdir()
    return launcher(folder, str(counted))


def num_compiled(tmp_path: Path) -> int:
    """Objects that the real compiler made."""
    return sum(" -c " in f" {line} " for line in (tmp_path / "log").read_text().splitlines())


def compile_in(place: Path, cxx: Path, code: str, *flags: str) -> bytes:
    """An object of that code, compiled in a folder."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "a.cpp").write_text(code)
    command = [str(cxx), str(place / "a.cpp"), *flags, "-c", "-o", str(place / "a.o")]
    subprocess.run(command, check=True, capture_output=True)
    return (place / "a.o").read_bytes()


def test_the_same_code_is_compiled_once(cxx: Path, tmp_path: Path) -> None:
    first = compile_in(tmp_path / "a", cxx, "// /tmp/a\nint f() { return 1; }", "-O1")
    second = compile_in(tmp_path / "b", cxx, "// /tmp/b\nint f() { return 1; }", "-O1")
    assert (first, num_compiled(tmp_path)) == (second, 1)


def test_other_code_or_flags_make_another_object(cxx: Path, tmp_path: Path) -> None:
    one = compile_in(tmp_path / "a", cxx, "int f() { return 1; }", "-O1")
    other = compile_in(tmp_path / "a", cxx, "int f() { return 2; }", "-O1")
    compile_in(tmp_path / "a", cxx, "int f() { return 1; }", "-O2")
    assert one != other
    assert num_compiled(tmp_path) == 3


def test_another_header_makes_another_object(cxx: Path, tmp_path: Path) -> None:
    header = tmp_path / "h.h"
    for text in ("#define X 1\n", "#define X 2\n"):
        header.write_text(text)
        compile_in(tmp_path / "a", cxx, "int f() { return X; }", "-include", str(header))
    assert num_compiled(tmp_path) == 2


@pytest.mark.parametrize("damage", [b"", b"no object"])
def test_a_damaged_object_is_compiled_again(
    cxx: Path, folder: Path, tmp_path: Path, damage: bytes
) -> None:
    whole = compile_in(tmp_path / "a", cxx, "int f() { return 1; }")
    (kept,) = folder.iterdir()
    kept.write_bytes(damage)
    assert compile_in(tmp_path / "a", cxx, "int f() { return 1; }") == whole
    assert kept.read_bytes() == whole


def test_a_header_is_precompiled_only_when_it_is_needed(cxx: Path, tmp_path: Path) -> None:
    header = tmp_path / "h.h"
    header.write_text("#define X 1\n")
    made = tmp_path / "h.h.gch"
    precompile = [str(cxx), "-x", "c++-header", str(header), "-o", str(made)]
    subprocess.run(precompile, check=True)
    assert not made.exists()
    compile_in(tmp_path / "a", cxx, "int f() { return X; }", "-include", str(header))
    assert made.exists()


def test_a_fault_in_the_code_is_the_compiler_s_own(cxx: Path, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        compile_in(tmp_path / "a", cxx, "int f() { return nothing; }")
    assert b"was not declared in this scope" in caught.value.stderr
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_costs_no_object(
    cxx: Path, folder: Path, tmp_path: Path
) -> None:
    folder.write_text("a file where the folder should be")
    assert compile_in(tmp_path / "a", cxx, "int f() { return 1; }")


def test_other_commands_go_to_the_compiler(cxx: Path) -> None:
    told = subprocess.run([str(cxx), "--version"], check=True, capture_output=True).stdout
    assert told == subprocess.run([REAL, "--version"], check=True, capture_output=True).stdout
