"""The compiler's own process, as a person or a Kubernetes job starts it."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from compiler_worker.__main__ import main
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.contracts.model.manifest import ModelVersion
from tests.conformance.tiny_model import draw_inputs, reference, tiny_model

pytestmark = pytest.mark.usefixtures("forked_children")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def where(settings: CompilerSettings) -> list[str]:
    """Options that point the compiler at the store of this test."""
    return ["--store-url", settings.store_url, "--cache-dir", str(settings.cache_dir)]


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A process sets up its logs; here it shares them with the tests."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)


QUICK = ("--benchmark-s", "0", "--benchmark-iterations", "3", "--num-threads", "1")


def test_build_then_build_again_then_prove(
    where: list[str],
    version: ModelVersion,
    worker: WorkerContext,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build = ["build", "tiny", "--kind", "onnxruntime", *QUICK, *where]
    assert main(build) == 0
    told = capsys.readouterr()
    assert "proven in" in told.out
    assert "benchmark" in told.err, "progress is shown while it works"

    assert main([*build, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["records"] == []
    (engine,) = again["up_to_date"]
    assert engine["proof"]["outcome"] == "passed"

    assert main(["prove", engine["digest"][:20], "--json", *QUICK, *where]) == 0
    proven = json.loads(capsys.readouterr().out)
    assert proven["proof"]["outcome"] == "passed"
    (published,) = worker.registry.engines()
    assert published.proof.created_at == proven["proof"]["created_at"]
    assert published.proof.created_at > engine["proof"]["created_at"]


@pytest.mark.slow
def test_a_process_of_its_own_does_the_same(where: list[str], version: ModelVersion) -> None:
    build = ["build", "tiny", "--kind", "onnxruntime", "--json", *QUICK, *where]
    done = subprocess.run(
        [sys.executable, "-m", "compiler_worker", *build],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (record,) = json.loads(done.stdout)["records"]
    assert record["outcome"] == "proven"
    for line in done.stderr.splitlines():
        assert json.loads(line)["process"] == "compiler"


def test_the_exported_graph_computes_the_model(
    where: list[str], version: ModelVersion, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "graph.pt2"
    assert main(["export-graph", "tiny", "--output", str(target), "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(target)}
    inputs = draw_inputs(3, 11)
    tensors = [torch.from_numpy(inputs[name]) for name in ("ids", "mask")]
    outputs = torch.export.load(target).module()(*tensors)
    wanted = reference(tiny_model(), inputs)["pooled"]
    torch.testing.assert_close(outputs[1], torch.from_numpy(wanted), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["build", "nobody"], "NotFoundError: model 'nobody' not found"),
        (["prove", "0123"], "NotFoundError: engine '0123' not found"),
        (["export-graph", "nobody"], "NotFoundError: model 'nobody' not found"),
        (["build", "x", "--num-threads", "two"], "SMELT_NUM_THREADS: got 'two'"),
    ],
)
def test_a_fault_is_told_without_a_traceback(
    where: list[str], arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, *where]) == 1
    found = capsys.readouterr()
    assert found.out == ""
    assert told in found.err
    assert "Traceback" not in found.err
