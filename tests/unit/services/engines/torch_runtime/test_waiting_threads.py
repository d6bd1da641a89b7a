"""OpenMP of replicas and of the compiler's children waits asleep, unless a host says otherwise."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

# The library prints what it goes by as soon as it is loaded.
_LOAD = """
import ctypes, sys
from services.engines.torch_runtime.waiting_threads import use_passive_wait_policy
use_passive_wait_policy()
ctypes.CDLL(sys.argv[1])
"""
# It fails, as there is no such request: by then everything is imported.
_CHILD = """
import os, sys
from compiler_worker.__main__ import main
print("torch" in sys.modules, os.environ.get("OMP_WAIT_POLICY"))
main(["import-one", "--request", sys.argv[1], "--parent-pid", str(os.getppid())])
print(os.environ.get("OMP_WAIT_POLICY"))
"""

# What Ray imports before it makes an actor of it; that sets the policy first of all.
_REPLICA = """
import sys
import services.replica.deployment
print("torch" in sys.modules)
"""


def told(code: str, *arguments: str, **environment: str) -> str:
    known = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    found = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=known | environment,
    )
    return found.stdout + found.stderr


@pytest.mark.parametrize(("of_host", "policy"), [("", "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_the_library_that_torch_brings_goes_by_it(of_host: str, policy: str) -> None:
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    library = Path(spec.origin).parent / "lib" / "libgomp.so.1"
    environment = {"OMP_WAIT_POLICY": of_host} if of_host else {}
    shown = told(_LOAD, str(library), OMP_DISPLAY_ENV="TRUE", **environment)
    assert f"OMP_WAIT_POLICY = '{policy}'" in shown


def test_a_child_of_the_compiler_has_it_before_it_imports_torch(tmp_path: Path) -> None:
    lines = told(_CHILD, str(tmp_path / "request.json")).splitlines()
    assert (lines[0], lines[-1]) == ("False None", "PASSIVE")


def test_a_replica_imports_torch_after_it_has_set_it() -> None:
    assert told(_REPLICA).splitlines() == ["False"]
