"""Adding models: what is refused before a version exists, and what makes a new version."""

import os
import re
import textwrap
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

from compiler_worker.master.normalise import normalise
from compiler_worker.model_checks.accepted_blindness import OF_EIGHT_BITS
from services.cli.fleet.fleet_file import RunningFleet, fleet_lock, write_fleet
from services.cli.main import app
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.cli.registry import open_registry_to_publish
from services.cli.settings import CliSettings
from services.contracts.errors import (
    InvalidModelError,
    InvalidRecipeError,
    InvalidRequestError,
    NotFoundError,
)
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, RankingTask, Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import ObstoreArtifactStore
from tests.conformance.tiny_model import draw_inputs
from tests.faults.judged import normal, written
from tests.unit.services.cli.models.adding import add, samples_file, source

RANKING = Recipe(ranking=RankingTask(output="pooled", num_queries=4, top_k=2))


def test_samples_become_part_of_the_version(registry: Registry, tmp_path: Path) -> None:
    path = samples_file(tmp_path / "samples.npz", draw_inputs(12, 6))
    version = add(registry, source(tmp_path / "a"), AddOptions(recipe=RANKING, samples=path))
    assert version.samples is not None
    assert registry.materialise_samples(version.samples).read_bytes() == path.read_bytes()


def test_a_master_that_a_pass_made_something_else_of_is_refused(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrongly(model: ir.Model) -> None:
        normalise(model)
        for node in model.graph:
            node.op_type = "Sigmoid" if node.op_type == "Tanh" else node.op_type

    monkeypatch.setattr("compiler_worker.master.stored.normalise", wrongly)
    graph = "g (float[batch, 8] x) => (float[batch, 4] y) { h = MatMul (x, w) y = Tanh (h) }"
    path = written(tmp_path, graph, w=normal(8, 4))
    with pytest.raises(InvalidModelError, match="computes something else: output 'y'"):
        add(registry, str(path))
    assert registry.model_names() == []


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"ids": np.zeros((9, 4), np.int64)}, "one array for each of"),
        (draw_inputs(9, 4) | {"ids": np.zeros((9, 4), np.float32)}, "samples: .*ids"),
        (draw_inputs(9, 4) | {"ids": np.zeros((8, 4), np.int64)}, "equal leading dimensions"),
    ],
)
def test_samples_of_another_model_are_refused(
    registry: Registry, tmp_path: Path, arrays: dict[str, Array], told: str
) -> None:
    path = samples_file(tmp_path / "samples.npz", arrays)
    with pytest.raises(InvalidModelError, match=told):
        add(registry, source(tmp_path / "a"), AddOptions(samples=path))
    assert registry.model_names() == []


def test_a_file_that_holds_no_arrays_is_refused(registry: Registry, tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    path.write_bytes(b"no archive")
    with pytest.raises(InvalidModelError, match=r"begins with b'no archive' found; .*numpy\.savez"):
        add(registry, source(tmp_path / "a"), AddOptions(samples=path))


@pytest.mark.parametrize(
    ("num_samples", "told"), [(0, "--samples FILE.npz"), (4, "4 samples are too few for 4 queries")]
)
def test_a_ranking_task_without_enough_samples_is_refused(
    registry: Registry, tmp_path: Path, num_samples: int, told: str
) -> None:
    path = tmp_path / "samples.npz"
    samples = samples_file(path, draw_inputs(num_samples, 6)) if num_samples else None
    with pytest.raises(InvalidRequestError, match=told):
        add(registry, source(tmp_path / "a"), AddOptions(recipe=RANKING, samples=samples))
    assert registry.model_names() == []


def test_a_recipe_for_another_model_is_refused(
    registry: Registry, store: ObstoreArtifactStore, tmp_path: Path
) -> None:
    recipe = Recipe(inputs={"tokens": InputRecipe(high=9)})
    with pytest.raises(InvalidRecipeError, match="'tokens' is not in the model"):
        add(registry, source(tmp_path / "a"), AddOptions(recipe=recipe))
    assert registry.model_names() == []
    # Weights of gigabytes are not stored for nothing.
    assert store.list("blobs/") == []


def test_a_name_that_no_model_can_have_is_refused_before_anything_is_opened(
    registry: Registry,
) -> None:
    with pytest.raises(InvalidRequestError, match="model name 'no name!'"):
        add_model(registry, "no name!", "nowhere.onnx", AddOptions(), Steps(is_quiet=True))


def test_the_same_source_is_opened_once_and_an_older_one_comes_back(
    registry: Registry, tmp_path: Path
) -> None:
    first, second = source(tmp_path / "a"), source(tmp_path / "b", seed=8)
    versions = [add(registry, text).version for text in (first, first, second, first)]
    assert versions == [1, 1, 2, 3]
    masters = [version.master.digest for version in registry.versions("tiny")]
    assert masters[0] == masters[2] != masters[1]


def test_a_calibration_set_is_found_beside_its_recipe_and_kept_with_the_version(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    folder = tmp_path / "options"
    folder.mkdir()
    samples_file(folder / "rows.npz", draw_inputs(20, 6))
    (folder / "recipe.yaml").write_text("precisions: [int8]\ncalibration: {path: rows.npz}\n")
    words = ["models", "add", "tiny", source(tmp_path / "a"), "--recipe"]
    for _ in range(2):
        done = CliRunner().invoke(
            app, [*words, str(folder / "recipe.yaml")], catch_exceptions=False
        )
    [version] = registry.versions("tiny")
    # What proofs in eight bits may overlook stands in the recipe, and is printed.
    outputs = version.recipe.outputs
    accepted = {Precision.INT8: OF_EIGHT_BITS[Precision.INT8]}
    assert all(output.accept_blind == accepted for output in outputs.values())
    assert f"int8: its proof may overlook on {', '.join(outputs)}: 2 % off" in done.stdout
    assert version.calibration is not None
    with np.load(registry.materialise_samples(version.calibration)) as kept:
        np.testing.assert_array_equal(kept["ids"], draw_inputs(20, 6)["ids"])
    samples_file(folder / "rows.npz", draw_inputs(21, 6))
    CliRunner().invoke(app, [*words, str(folder / "recipe.yaml")], catch_exceptions=False)
    assert [each.version for each in registry.versions("tiny")] == [1, 2]


@pytest.mark.parametrize(("rows", "has_calibration"), [(20, True), (12, False)])
def test_where_the_order_decides_samples_calibrate_too(
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    has_calibration: bool,
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    samples = samples_file(tmp_path / "samples.npz", draw_inputs(rows, 6))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("accuracy: ranking\nranking: {output: pooled, num_queries: 4, top_k: 2}\n")
    words = ["models", "add", "tiny", source(tmp_path / "a"), "--samples", str(samples)]
    done = CliRunner().invoke(app, [*words, "--recipe", str(recipe)], catch_exceptions=False)
    version = registry.model_version("tiny")
    assert (version.calibration is not None) is has_calibration
    accepted = {Precision.INT8: OF_EIGHT_BITS[Precision.INT8]} if has_calibration else {}
    assert all(each.accept_blind == accepted for each in version.recipe.outputs.values())
    assert "accuracy: ranking; engines also pass ranking of 'pooled'" in done.stdout
    assert ("int8: at most" in done.stdout) is has_calibration
    # As the remarks that stay; the progress line is gone from a terminal once it is done.
    kept = [each for each in done.stderr.splitlines() if each.startswith("  no int8 engines are")]
    assert bool(kept) is not has_calibration


def test_samples_that_do_not_calibrate_are_said_with_what_would(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    samples = samples_file(tmp_path / "samples.npz", draw_inputs(20, 6))
    words = ["models", "add", "tiny", source(tmp_path / "a"), "--samples", str(samples)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert registry.model_version("tiny").calibration is None
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("  no int8 engines")]
    assert "accuracy: ranking" in said
    assert "calibration: {path: FILE}" in said


def test_a_model_without_a_recipe_says_what_sizes_it_is_served_at(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    words, told = ["models", "add", "tiny"], "serves batch 1..8, sequence 1..128; for other sizes"
    done = CliRunner().invoke(app, [*words, source(tmp_path / "a")], catch_exceptions=False)
    assert told in done.stdout
    assert "--recipe FILE" in done.stdout
    assert "accuracy: close" in done.stdout
    assert "bf16: at most relative L2 0.02" in done.stdout
    recipe = tmp_path / "recipe.yaml"
    span = "{min: 1, opt: 4, max: 32}"
    recipe.write_text(f"buckets: [dims: {{batch: {span}, sequence: {span}}}]\n")
    words += [source(tmp_path / "a"), "--recipe", str(recipe)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "tiny version 2" in done.stdout
    assert "version 2 has the same master as version 1" in done.stderr
    assert told not in done.stdout
    plain, asked = registry.versions("tiny")
    assert (plain.recipe.buckets, asked.buckets) == ((), asked.recipe.buckets)
    # A recipe is not taken over by what is another file.
    model = onnx.load(source(tmp_path / "a"))
    model.doc_string = "trained again"
    onnx.save(model, tmp_path / "b.onnx")
    again = ["models", "add", "tiny", str(tmp_path / "b.onnx")]
    done = CliRunner().invoke(app, again, catch_exceptions=False)
    lost = "recipes are not inherited, and that of version 2 differs (buckets)"
    assert lost in done.stderr


def test_a_model_of_fixed_sizes_says_so(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    text = "m (float[1,3] x) => (float[1,3] y) { y = Relu (x) }"
    onnx.save(
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}'),
        tmp_path / "fixed.onnx",
    )
    words = ["models", "add", "fixed", str(tmp_path / "fixed.onnx")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert registry.model_version("fixed").master.inputs[0].shape == (1, 3)
    assert "serves x [1, 3] alone: no dimension is dynamic; for other sizes" in done.stdout
    assert "dynamic_shapes" in done.stdout


def test_what_was_taken_without_being_asked_for_is_said_and_the_printed_recipe_is_one(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    graph = """g (float[s31, s7] x) => (float[s31, s7] y) {
        n = Shape <start = 1> (x)  zero = Constant <value_ints = [0]> ()
        some = Slice (places, zero, n)  y = Add (x, some) }"""
    path = str(written(tmp_path, graph, places=normal(6)))
    done = CliRunner().invoke(app, ["models", "add", "sized", path], catch_exceptions=False)
    for words in ("took 'batch' for x[0]", "are computed as if alone", "'x_dim1' 1..6: "):
        assert words in done.stderr
    assert done.stderr.count("name them in the file (torch.onnx.export: dynamic_shapes)") == 1
    (line,) = [line for line in done.stdout.splitlines() if "as in {" in line]
    printed = Recipe.from_yaml(line.partition(", as in ")[2])
    assert printed.buckets == registry.model_version("sized").buckets
    # Nothing is said of what a recipe names.
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(line.partition(", as in ")[2])
    words = ["models", "add", "sized", path, "--recipe", str(recipe)]
    again = CliRunner().invoke(app, words, catch_exceptions=False).stderr
    assert [line for line in again.splitlines() if line.strip().startswith("'x_dim1'")] == []


SHORT = """
    import torch
    from compiler_worker.master.pytorch_source import DimLimits, PyTorchModel

    class Short(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.places = torch.nn.Embedding(64, 4)

        def forward(self, x):
            return x + self.places(torch.arange(x.shape[1]))

    def make():
        return PyTorchModel(
            module=Short(),
            example_inputs={"x": torch.ones(3, 5, 4)},
            dynamic_dims={"x": {0: "batch", 1: "sequence"}},
            dim_limits={
                "batch": DimLimits(min=1, max=32),
                "sequence": DimLimits(min=2, max=64),
                "other": DimLimits(min=1, max=2),
            },
            output_names=("y",),
        )
"""


def test_the_limits_of_a_factory_bound_what_it_is_served_at(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "short_places.py").write_text(textwrap.dedent(SHORT))
    monkeypatch.syspath_prepend(str(tmp_path))
    version = add(registry, "short_places:make")
    assert set(version.dim_limits) == {"batch", "sequence"}
    (bucket,) = registry.model_version("tiny").buckets
    assert bucket.dims["batch"] == DimRange(min=1, opt=4, max=8)
    assert bucket.dims["sequence"] == DimRange(min=2, opt=64, max=64)
    dims = {"batch": bucket.dims["batch"], "sequence": DimRange(min=2, opt=64, max=65)}
    beyond = Recipe(buckets=(Bucket(dims=dims),))
    with pytest.raises(InvalidRecipeError, match=r"2\.\.65, but the source allows 2\.\.64"):
        add(registry, "short_places:make", AddOptions(recipe=beyond))


def test_integers_of_which_nothing_is_said_are_told_and_no_others(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    graph = """g (int64[batch, 2] count, int64[batch, 2] ids) => (float[batch, 2] y) {
        c = Cast <to = 1> (count)  rows = Gather (table, ids)  y = Add (c, rows) }"""
    path = str(written(tmp_path, graph, table=normal(9)))
    done = CliRunner().invoke(app, ["models", "add", "shop", path], catch_exceptions=False)
    said = done.stdout
    assert re.search(r"^  Model shop \(4 of 4, .+\): publishing the master$", done.stderr, re.M)
    assert "which integers 'count' takes: proofs draw 0 and 1 alone" in said
    assert "which integers 'ids' takes" not in said
    assert "input ids: 0 to 8" in said


def test_no_store_is_made_where_this_host_s_fleet_has_lost_its_own(tmp_path: Path) -> None:
    settings = CliSettings(home=tmp_path)
    with fleet_lock(settings.run_dir):
        write_fleet(
            settings.run_dir,
            RunningFleet(
                supervisor_pid=os.getpid(),
                controller="c",
                grpc_address="g",
                metrics_address="m",
                store_url=settings.store_url,
            ),
        )
        with pytest.raises(NotFoundError, match="from which this host's fleet serves: put it back"):
            open_registry_to_publish(settings)
    assert not Path(settings.store_url).exists()
    open_registry_to_publish(settings)
    assert Path(settings.store_url).exists()
