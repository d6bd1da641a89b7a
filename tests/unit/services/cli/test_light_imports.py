"""What commands must not import, as each of these libraries costs a start of theirs its time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.reference.commands import all_commands
from tests.unit.services.controller import build_world as world

COMPUTING = {
    "torch",
    "ray",
    "onnx",
    "onnxruntime",
    "openvino",
    "tensorrt",
    "sympy",
    "scipy",
    "numpy",
    "ml_dtypes",
    "transformers",
    "tritonclient",
}
# What only some commands have a use for, and only at some times.
TALKING = {"grpc", "asyncio", "cryptography", "prometheus_client", "psutil", "rich", "yaml"}
READING = {"pydantic", "obstore", "google.protobuf"}
RUN = """
import json, sys
from services.cli.main import main
try:
    main()
except SystemExit as ended:
    code = ended.code or 0
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def imported(*words: str, wanted: int = 0, **environment: str) -> set[str]:
    """All modules of a process that ran this command, which ended with the wanted code."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words],
        capture_output=True,
        text=True,
        env=dict(os.environ) | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == wanted, done.stderr
    return set(modules)


def test_the_version_is_printed_at_once() -> None:
    assert not imported("--version") & {*COMPUTING, *TALKING, *READING}


@pytest.mark.parametrize("command", ["", *all_commands()])
def test_help_needs_nothing_of_what_the_command_does(command: str) -> None:
    modules = imported(*command.split(), "--help")
    # Typer's help is made by Rich, and its options are read by pydantic where that is installed.
    assert not modules & ({*COMPUTING, *TALKING, *READING} - {"rich", "pydantic"})


@pytest.mark.parametrize(
    "command",
    [
        "models list",
        "models weights m",
        "models unload m",
        "engines",
        "events",
        "why m",
        "prune",
        "rebuild m",
    ],
)
def test_what_looks_at_a_store_imports_nothing_that_computes_or_talks(
    command: str, tmp_path: Path
) -> None:
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    registry.add_model_version(
        name="m", master=world.MASTER, recipe=Recipe(), source="s", source_fingerprint="0"
    )
    modules = imported(*command.split(), SMELT_HOME=str(tmp_path))
    assert not modules & {*COMPUTING, *TALKING}
    assert "services.cli.registry" in modules or command == "prune"


def test_a_recipe_is_checked_without_what_computes(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("precisions: auto\n")
    modules = imported("recipe", "check", str(tmp_path / "recipe.yaml"))
    assert not modules & {*COMPUTING, *TALKING - {"yaml"}, "obstore", "services.cli.registry"}


def test_a_file_that_is_not_there_is_refused_before_a_model_could_be_opened(tmp_path: Path) -> None:
    command = ("models", "add", "m", str(tmp_path / "m.onnx"))
    modules = imported(*command, wanted=1, SMELT_HOME=str(tmp_path))
    assert "compiler_worker.master.source" in modules
    assert not modules & {*COMPUTING, *TALKING - {"rich"}, "services.cli.models.add"}


def test_a_broken_recipe_is_refused_before_what_opens_models_is_imported(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    (tmp_path / "recipe.yaml").write_text("kinds: [openvin]\n")
    command = ("models", "add", "m", str(tmp_path / "m.onnx"), "--recipe")
    modules = imported(*command, str(tmp_path / "recipe.yaml"), wanted=1, SMELT_HOME=str(tmp_path))
    assert "yaml" in modules
    assert not modules & {*COMPUTING, "grpc", "services.cli.models.add"}


def test_a_bench_without_a_fleet_is_refused_before_what_sends_is_imported(tmp_path: Path) -> None:
    modules = imported("bench", "m", wanted=1, SMELT_HOME=str(tmp_path))
    assert "services.cli.fleet.fleet_file" in modules
    assert not modules & {*COMPUTING, *TALKING - {"rich"}, "uvloop", "obstore"}


def test_a_start_is_refused_before_it_imports_what_a_fleet_serves(tmp_path: Path) -> None:
    modules = imported("up", "--generation", "none", wanted=1, SMELT_HOME=str(tmp_path))
    assert "services.cli.fleet.local_fleet" in modules
    heavy = {*COMPUTING, *TALKING - {"psutil", "rich"}, "obstore"}
    assert not modules & {*heavy, "services.contracts.model.manifest"}


def test_a_request_needs_neither_a_store_nor_its_records(tmp_path: Path) -> None:
    modules = imported("infer", "m", wanted=1, SMELT_HOME=str(tmp_path))
    assert "services.cli.requests.gateway_client" in modules
    assert not modules & {"obstore", "services.cli.registry", "services.contracts.model.manifest"}


def test_without_the_packages_of_the_command_line_they_are_named() -> None:
    code = "import sys; sys.modules['typer'] = None; import services.cli.main"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith("the command line needs pip install 'smelt[cli]'\n")
