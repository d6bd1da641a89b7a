"""Torch's compile cache: where it is, and that it stays within its bounds."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.engines.caches.compile_cache import (
    compile_cache,
    prepare_compile_cache,
    tidy_compile_cache,
)

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
HOUR_S = 3600.0


def put(root: Path, name: str, num_bytes: int, age_s: float) -> Path:
    path = compile_cache(root) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(num_bytes))
    then_s = time.time() - age_s
    os.utime(path, (then_s, then_s))
    return path


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the environment to other tests as it was."""
    monkeypatch.setenv(VARIABLE, "unset")
    monkeypatch.delenv(VARIABLE)


# In a process of its own, as it changes constants of torch's module: no setting names them, and
# that torch compiles headers there shows only after some twenty seconds of compiling.
WHERE = """
import json, sys
from pathlib import Path
from services.engines.caches.compile_cache import keep_headers_in_cache, prepare_compile_cache
prepare_compile_cache(Path(sys.argv[1]))
keep_headers_in_cache()
from torch._inductor import codecache
folders = codecache.cache_dir(), codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR
print(json.dumps([*folders, codecache._precompile_header.__wrapped__.__code__.co_names]))
"""


def test_code_and_headers_go_below_the_cache(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-c", WHERE, str(tmp_path)]
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    code, headers, locks, read_for_headers = json.loads(said)
    # What torch itself says, and what its header code reads.
    assert Path(code) == tmp_path / "inductor"
    assert Path(headers) == tmp_path / "inductor" / "precompiled_headers"
    assert Path(locks).parent == Path(headers)
    assert "_HEADER_DIR" in read_for_headers


# A small header, in a process of its own: it changes constants of torch's module.
TWICE = """
import os, shutil, sys
from pathlib import Path
from services.engines.caches.compile_cache import keep_headers_in_cache
from torch._inductor import codecache
for folder in sys.argv[1:]:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    keep_headers_in_cache()
    header = codecache._precompile_header("cstdint", "", device_type="cpu")
    assert Path(header).is_file() and header.startswith(folder), header
    shutil.rmtree(folder)
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++: apt install g++")
def test_headers_are_compiled_again_in_another_folder(tmp_path: Path) -> None:
    """Else g++ is told to include one that went with the first folder, and nothing compiles."""
    subprocess.run([sys.executable, "-c", TWICE, tmp_path / "a", tmp_path / "b"], check=True)


def test_a_folder_that_is_set_already_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "own"))
    prepare_compile_cache(tmp_path)
    assert os.environ[VARIABLE] == str(tmp_path / "own")


def test_the_oldest_go_while_there_is_too_much(tmp_path: Path) -> None:
    old = put(tmp_path, "a/old", 60, 3 * HOUR_S)
    newer = put(tmp_path, "b/newer", 60, 2 * HOUR_S)
    tidy_compile_cache(tmp_path, max_bytes=100)
    assert (old.exists(), newer.exists()) == (False, True)


def test_what_is_young_stays_and_counts(tmp_path: Path) -> None:
    young = [put(tmp_path, f"c/{number}", 60, 0) for number in range(3)]
    old = put(tmp_path, "a/old", 10, 2 * HOUR_S)
    tidy_compile_cache(tmp_path, max_bytes=100)
    assert [path.exists() for path in young] == [True] * 3
    assert not old.exists()


def test_what_was_made_long_ago_goes_with_its_empty_folder(tmp_path: Path) -> None:
    old = put(tmp_path, "a/b/old", 1, 100 * HOUR_S)
    kept = put(tmp_path, "c/kept", 1, HOUR_S)
    tidy_compile_cache(tmp_path, max_age_s=50 * HOUR_S)
    assert not old.exists()
    then_s = time.time() - 2 * HOUR_S
    os.utime(old.parent, (then_s, then_s))
    tidy_compile_cache(tmp_path)
    assert not old.parent.exists()
    assert kept.exists()


def test_no_folder_is_nothing_to_tidy(tmp_path: Path) -> None:
    tidy_compile_cache(tmp_path)
    assert list(tmp_path.iterdir()) == []
