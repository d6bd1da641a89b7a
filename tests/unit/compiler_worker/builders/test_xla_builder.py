"""StableHLO and executables of the tiny model; what is left out without JAX."""

from importlib import metadata
from pathlib import Path

import pytest
import torch

from compiler_worker.builders.xla_builder import XlaBuilder, removed_overloads
from services.contracts.errors import BuildError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.recipe import InputRecipe, Recipe
from services.engines.artifacts.artifact_index import INDEX, ArtifactIndex
from services.engines.xla_engine import STABLEHLO
from tests.conformance.workshop import BUCKETS
from tests.unit.compiler_worker.builders.conftest import PlanMaker

V3 = Generation.parse("cpu-x86_64-v3")
REASON = XlaBuilder().unavailable_reason(V3, Precision.FP32)
needs_jax = pytest.mark.skipif(bool(REASON), reason=REASON or "it is here")


@pytest.mark.parametrize("package", ["jax", "torchax"])
def test_without_its_packages_it_says_which(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    def version(name: str) -> str:
        if name == package:
            raise metadata.PackageNotFoundError
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    reason = XlaBuilder().unavailable_reason(V3, Precision.FP32)
    assert reason == f"the Python package {package} is not installed"


def test_what_lowers_the_graph_is_in_the_key_and_no_part_of_the_toolchain() -> None:
    assert f"torch {torch.__version__}" in XlaBuilder().options(V3, Precision.FP32)["lowering"]
    assert "torch" not in XlaBuilder().toolchain(V3)


def test_overloads_that_torch_has_no_more_are_named_only_while_torchax_is_imported() -> None:
    with removed_overloads():
        assert torch.ops.aten.prod.no_such_overload
        assert torch.ops.aten.prod.default is not None
        assert not hasattr(torch.ops.aten.prod, "_no_such_attribute")
    assert not hasattr(torch.ops.aten.prod, "no_such_overload_either")


@needs_jax
def test_each_bucket_has_an_executable_and_what_it_was_compiled_from(
    make_plan: PlanMaker, workspace: Path
) -> None:
    recipe = Recipe(inputs={"ids": InputRecipe(pad=1), "mask": InputRecipe()})
    plan = make_plan(EngineKind.XLA, str(V3), recipe=recipe)
    output = XlaBuilder().build(plan, workspace, print)
    index = ArtifactIndex.from_json(output.files[INDEX].read_bytes())
    assert [artifact.bucket for artifact in index.artifacts] == list(BUCKETS)
    assert index.pads == {"ids": 1}
    for artifact in index.artifacts:
        assert artifact.file in output.files
        assert Path(artifact.file).with_suffix(STABLEHLO).name in output.files
        # Joined or not, what the master has is not stored a second time.
        assert all(ref.is_in_master for ref in artifact.weights)


@needs_jax
def test_an_operation_that_torchax_lacks_fails_the_build_with_its_name(
    make_plan: PlanMaker, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with removed_overloads():
        import torchax.ops.jaten  # noqa: F401
        from torchax.ops.ops_registry import all_aten_ops

    monkeypatch.delitem(all_aten_ops, torch.ops.aten.gelu, raising=False)
    monkeypatch.delitem(all_aten_ops, torch.ops.aten.gelu.default, raising=False)
    with pytest.raises(BuildError, match="gelu"):
        XlaBuilder().build(make_plan(EngineKind.XLA, str(V3)), workspace, print)
