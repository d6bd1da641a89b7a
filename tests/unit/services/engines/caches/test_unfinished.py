"""Libraries that a compiler was killed at: what torch makes of them, and that they go."""

import os
import subprocess
import sys
from pathlib import Path

import numpy._core._multiarray_umath as some_library
import pytest
from filelock import FileLock

from services.engines.caches.unfinished import remove_unfinished

WHOLE = Path(some_library.__file__).read_bytes()
COMPILE = """
import torch
print(torch.compile(lambda x: torch.tanh(x) * 3 + 1)(torch.zeros(4)).tolist())
"""


def put(root: Path, name: str, data: bytes) -> Path:
    path = root / "ab" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_what_was_cut_goes_and_what_is_whole_stays(tmp_path: Path) -> None:
    whole = put(tmp_path, "cwhole.main.so", WHOLE)
    source = put(tmp_path, "ccut.main.cpp", b"")
    cut = {
        put(tmp_path, "cempty.main.so", b""),
        put(tmp_path, "cshort.main.so", WHOLE[:4096]),
        put(tmp_path, "cbegun.main.o", bytes(len(WHOLE))),
    }
    assert set(remove_unfinished(tmp_path)) == cut
    assert whole.is_file()
    assert source.is_file()
    assert not any(path.exists() for path in cut)


def test_what_is_in_the_making_stays(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    path = put(tmp_path, "cmaking.main.so", WHOLE[:1000])
    with FileLock(tmp_path / "locks" / "cmaking.lock"):
        assert remove_unfinished(tmp_path) == []
    assert remove_unfinished(tmp_path) == [path]


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_torch_compiles_again_what_was_cut(tmp_path: Path) -> None:
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        # A compiled graph that is remembered would hide the fault.
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    }

    def compiled() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", COMPILE],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )

    assert compiled().returncode == 0
    (library,) = tmp_path.rglob("*.main.so")
    library.write_bytes(b"")
    # This is torch's own doing, and why all of this is here.
    assert "file too short" in compiled().stderr
    assert remove_unfinished(tmp_path) == [library]
    assert compiled().stdout.strip() == "[1.0, 1.0, 1.0, 1.0]"
