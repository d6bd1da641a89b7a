"""`smelt profile`, with a real store and a real compiler."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from compiler_worker.profiling.profile_job import profile_model
from compiler_worker.profiling.profile_report import OpOutcome, ProfileReport
from compiler_worker.profiling.profile_request import ProfileOptions
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.cli.main import app
from services.contracts.errors import InvalidModelError, NotFoundError, SmeltError
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Bucket, DimRange

_SOURCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        x = torch.tanh(x)
        torch._dynamo.graph_break()
        return x + 1


def model():
    return Model(), (torch.ones(2),)
"""


@pytest.fixture
def small(worker: WorkerContext, version: ModelVersion) -> ModelVersion:
    """The model with one bucket of one size besides: two to choose from."""
    dims = {"batch": DimRange(min=1, opt=1, max=1), "sequence": DimRange(min=1, opt=4, max=4)}
    recipe = version.recipe.model_copy(
        update={"buckets": (*version.recipe.buckets, Bucket(dims=dims))}
    )
    return worker.registry.add_model_version(
        name="tiny",
        master=version.master,
        recipe=recipe,
        source="tiny.onnx",
        source_fingerprint="1",
        samples=None,
    )


@pytest.mark.usefixtures("small")
def test_a_profile_accounts_for_every_op_and_kernel(
    settings: CompilerSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = tmp_path / "owner.py", tmp_path / "out"
    source.write_text(_SOURCE)
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "home"))
    options = ["--bucket", "batch4-sequence16", "--source", f"{source}:model", "--out", str(out)]
    done = CliRunner().invoke(
        app, ["profile", "tiny", *options, "--store", settings.store_url, "--json"]
    )
    assert done.exit_code == 0, done.output
    report = ProfileReport.model_validate_json(done.stdout)
    assert report == ProfileReport.from_json((out / "report.json").read_bytes())
    assert (report.version, report.sizes) == (2, {"batch": 4, "sequence": 16})
    _check_ops(report)
    _check_kernels(report)
    _check_files(report, out)
    assert report.source is not None
    assert [Path(found.file).name for found in report.source.breaks] == ["owner.py"]


def _check_ops(report: ProfileReport) -> None:
    """Every op that moves something lies in kernels that are there."""
    moving = [op for op in report.ops if op.outcome is not OpOutcome.FREE]
    assert moving
    assert all(op.outcome is OpOutcome.KERNEL and op.kernels for op in moving)
    assert {index for op in moving for index in op.kernels} == set(range(len(report.kernels)))
    before = report.before
    assert before.num_bytes == sum(op.num_bytes for op in report.eager_ops)
    assert before.num_flops == sum(op.num_flops for op in report.eager_ops) > 0
    assert before.num_views is not None
    assert before.num_ops + before.num_views == sum(len(o.dispatched) for o in report.eager_ops)
    assert all(op.time_s is not None for op in report.ops)


def _check_kernels(report: ProfileReport) -> None:
    assert 0 < report.after.num_ops == len(report.kernels) <= report.before.num_ops
    assert any(kernel.is_extern for kernel in report.kernels)
    assert any(len(kernel.chain) > 1 for kernel in report.kernels if not kernel.is_extern)
    assert all(kernel.num_bytes for kernel in report.kernels)
    # A library reads and writes what the op did that it computes, and not a few bytes of it.
    for kernel in (kernel for kernel in report.kernels if kernel.is_extern):
        assert kernel.num_bytes is not None
        assert kernel.num_bytes >= kernel.eager_bytes / 4
    assert all(kernel.time_s is not None for kernel in report.kernels)
    assert report.after.num_bytes == sum(kernel.num_bytes or 0 for kernel in report.kernels)
    assert report.after.num_bytes < report.before.num_bytes
    assert report.after.num_flops == sum(op.num_flops for op in report.ops)
    if not report.generation.startswith("cpu"):
        return  # there the product takes the bias along
    # Bias and gelu: two ops, no operand of their size from elsewhere; and so it is seen.
    (chain,) = [k for k in report.kernels if k.chain == ("add", "gelu")]
    assert (chain.num_chain_ops, chain.num_side_inputs, chain.predicted_gain) == (2, 0, 2.0)
    assert chain.measured_gain == pytest.approx(2.0, rel=0.05)


def _check_files(report: ProfileReport, out: Path) -> None:
    assert sorted(path.name for path in out.iterdir()) == [
        "report.json",
        "time-per-op.svg",
        "trace-compiled.json",
        "trace-eager.json",
    ]
    ET.parse(report.files.picture)
    eager, compiled = (
        {event.get("name") for event in json.loads(Path(path).read_text())["traceEvents"]}
        for path in (report.files.trace_eager, report.files.trace_compiled)
    )
    assert f"op: {report.eager_ops[0].name}" in eager
    assert any(report.kernels[0].name in (name or "") for name in compiled)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_without_json_it_is_shown_in_lines_and_tables(
    settings: CompilerSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SMELT_NUM_THREADS", "1")
    wanted = ["--bucket", "batch1-sequence4", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["profile", "tiny", *wanted, "--store", settings.store_url])
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert "bucket batch1-sequence4 (batch 1, sequence 4)" in text
    assert "kernels called" in text
    assert "; 1 threads;" in text


@pytest.mark.parametrize(
    ("wishes", "error", "words"),
    [
        (
            {"bucket": "batch9"},
            NotFoundError,
            "no bucket 'batch9'; it has batch4-sequence16",
        ),
        ({"source": "no_such_module_here:f"}, InvalidModelError, "no_such_module_here"),
    ],
    ids=["bucket", "source"],
)
def test_what_is_not_there_is_refused_and_leaves_no_folder(
    worker: WorkerContext,
    version: ModelVersion,
    tmp_path: Path,
    wishes: dict[str, str],
    error: type[SmeltError],
    words: str,
) -> None:
    asked = ProfileOptions(out=tmp_path / "out", **wishes)  # type: ignore[arg-type]
    with pytest.raises(error, match=words):
        profile_model(version, asked, worker, lambda event: None)
    assert not (tmp_path / "out").exists()


def test_a_source_that_ends_its_process_is_named_and_the_owner_s_folder_stays(
    worker: WorkerContext, version: ModelVersion, tmp_path: Path
) -> None:
    (tmp_path / "owner.py").write_text("import sys\n\n\ndef quits():\n    sys.exit(0)\n")
    (tmp_path / "mine").mkdir()
    asked = ProfileOptions(source=f"{tmp_path / 'owner.py'}:quits", out=tmp_path / "mine")
    with pytest.raises(InvalidModelError, match=r"quits failed: SystemExit\(0\)"):
        profile_model(version, asked, worker, lambda event: None)
    assert (tmp_path / "mine").is_dir()
