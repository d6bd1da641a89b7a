"""Kernels without weights: what the index says and what travels with the engine."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from compiler_worker.builders.failures import recorded_warnings
from compiler_worker.builders.inductor_artifacts import build_artifacts
from compiler_worker.builders.weight_sorter import WeightSorter
from services.contracts.errors import BuildError, UnsupportedGraphError
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.recipe import InputRecipe, Recipe
from services.engines.artifacts.artifact_index import CONSTANTS, INDEX, ArtifactIndex
from services.engines.artifacts.artifact_weights import WeightTable
from tests.conformance.tiny_model import tiny_model
from tests.conformance.workshop import BUCKETS
from tests.unit.compiler_worker.builders.conftest import PlanMaker

ONE_BUCKET = BUCKETS[:1]


@pytest.fixture
def index_of(make_plan: PlanMaker, workspace: Path) -> ArtifactIndex:
    recipe = Recipe(inputs={"ids": InputRecipe(pad=1), "mask": InputRecipe()})
    plan = make_plan(
        EngineKind.INDUCTOR,
        "cuda-sm90",
        precision=Precision.FP16,
        buckets=ONE_BUCKET,
        recipe=recipe,
    )
    with recorded_warnings():
        output = build_artifacts(plan, {}, workspace, print, device="cpu")
    assert output.needs_master
    assert set(output.files) >= {INDEX, "bucket0.bin"}
    return ArtifactIndex.from_json((workspace / INDEX).read_bytes())


def test_weights_stay_with_the_master_and_come_back_typed(
    index_of: ArtifactIndex, workspace: Path, master_path: Path
) -> None:
    artifact = index_of.artifacts[0]
    assert artifact.bucket == ONE_BUCKET[0]
    refs = [part for ref in artifact.weights for part in ref.parts or (ref,)]
    by_name = {ref.name: ref for ref in refs}
    weights = {t.name: numpy_helper.to_array(t) for t in tiny_model().graph.initializer}
    table = WeightTable.open(workspace, master_path, "cpu")
    for name, values in weights.items():
        if values.ndim == 2:
            ref = by_name[name]
            assert (ref.datatype, ref.is_in_master) == ("FP16", True)
            assert torch.equal(table.tensor(ref), torch.from_numpy(values.copy()).half())
    # The few constants of the typed graph that the master does not have are small.
    own = torch.load(workspace / CONSTANTS) if (workspace / CONSTANTS).exists() else {}
    assert all(tensor.numel() <= 16 for tensor in own.values())


def test_pads_of_the_recipe_are_in_the_index(index_of: ArtifactIndex) -> None:
    assert index_of.pads == {"ids": 1.0}


def test_an_output_that_cannot_be_cut_is_refused(make_plan: PlanMaker, workspace: Path) -> None:
    plan = make_plan(EngineKind.INDUCTOR, "cuda-sm90")
    odd = plan.master.outputs[0].model_copy(update={"shape": ("batch", "2*sequence")})
    master = plan.master.model_copy(update={"outputs": (odd,)})
    plan = type(plan)(key=plan.key, master=master, master_path=plan.master_path)
    with pytest.raises(BuildError, match="dimension '2\\*sequence', which no input has"):
        build_artifacts(plan, {}, workspace, print, device="cpu")


def test_a_weight_that_the_master_does_not_hold_travels_with_the_engine(
    workspace: Path, master_path: Path
) -> None:
    sorter = WeightSorter(master_path)
    wq = next(t for t in onnx.load(master_path).graph.initializer if t.name == "wq")
    values = torch.from_numpy(numpy_helper.to_array(wq).copy())
    renamed = sorter.ref("wq_of_a_typed_graph", values)
    assert (renamed.name, renamed.is_in_master) == ("wq", True)
    other, another = sorter.ref("p", values + 1), sorter.ref("p", values + 2)
    assert not other.is_in_master
    assert other.name != another.name
    sorter.save(workspace / CONSTANTS)
    table = WeightTable.open(workspace, master_path, "cpu")
    assert torch.equal(table.tensor(renamed), values)
    assert torch.equal(table.tensor(other), values + 1)
    assert torch.equal(table.tensor(another), values + 2)


def test_weights_side_by_side_and_in_another_layout_come_from_the_master(
    workspace: Path, master_path: Path
) -> None:
    sorter = WeightSorter(master_path)
    arrays = {t.name: numpy_helper.to_array(t) for t in onnx.load(master_path).graph.initializer}
    parts = [torch.from_numpy(arrays[name].copy()).half() for name in ("wq", "wk", "wv")]
    joined = torch.cat(parts, dim=-1)
    turned = torch.from_numpy(arrays["wk"].copy()).T.contiguous().T
    refs = sorter.ref("qkv", joined, parts), sorter.ref("turned", turned)
    sorter.save(workspace / CONSTANTS)
    assert not (workspace / CONSTANTS).exists()
    table = WeightTable.open(workspace, master_path, "cpu")
    for ref, wanted in zip(refs, (joined, turned), strict=True):
        found = table.tensor(ref)
        assert torch.equal(found, wanted)
        assert found.stride() == wanted.stride()


def test_an_engine_without_constants_of_its_own_has_no_file_for_them(
    workspace: Path, master_path: Path
) -> None:
    WeightSorter(master_path).save(workspace / CONSTANTS)
    assert list(workspace.iterdir()) == []


def test_a_graph_without_a_product_for_fp8_kernels_is_refused(
    make_plan: PlanMaker, workspace: Path, tmp_path: Path
) -> None:
    plan = make_plan(EngineKind.INDUCTOR, "cuda-sm90", precision=Precision.FP8, buckets=ONE_BUCKET)
    rows = tmp_path / "rows.npz"
    np.savez(rows, ids=np.arange(128).reshape(16, 8) % 40, mask=np.ones((16, 8), np.int64))
    # On a CPU no product is given to such a kernel.
    with pytest.raises(UnsupportedGraphError, match="no product of the graph has an fp8 kernel"):
        build_artifacts(replace(plan, calibration_path=rows), {}, workspace, print, device="cpu")
