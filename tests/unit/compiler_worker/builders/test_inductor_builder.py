"""Which settings a generation gets, and when a machine may build it."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from compiler_worker.builders import hosts, inductor_packages
from compiler_worker.builders.base import BuildSpec
from compiler_worker.builders.inductor_builder import InductorBuilder, inductor_config
from compiler_worker.fx_rewrites.names import rewrites_for
from services.contracts.errors import BuildError, BuildUnavailableError, UnsupportedGraphError
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.kind_options import InductorOptions
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from services.engines.device.device_probe import probe_device
from tests.unit.compiler_worker.builders.conftest import PlanMaker

V3 = Generation.parse("cpu-x86_64-v3")


@pytest.mark.parametrize(
    ("generation", "simdlen", "march"),
    [
        ("cpu-x86_64-v3", 256, "x86-64-v3"),
        ("cpu-x86_64-avx512", 512, "x86-64-v4"),
        ("cpu-x86_64-amx", 512, "x86-64-v4"),
    ],
)
def test_the_instruction_set_is_that_of_the_target(
    generation: str, simdlen: int, march: str
) -> None:
    config = inductor_config(Generation.parse(generation))
    assert (config["cpp.simdlen"], config["cpp.march"]) == (simdlen, march)
    assert config["cpp.dynamic_threads"] is True


@pytest.mark.parametrize("generation", ["cpu-x86_64-v3", "cuda-sm90"])
def test_every_setting_is_one_that_torch_knows_and_is_in_the_key(generation: str) -> None:
    from torch._inductor import config as known

    parsed = Generation.parse(generation)
    settings = inductor_config(parsed)
    with known.patch(settings):
        pass
    options = InductorBuilder().options(parsed, Precision.FP32)
    rewrites = " ".join(rewrites_for(parsed.platform))
    packed = {"packed": "convolutions"} if parsed.platform is Platform.CPU else {}
    assert options == {name: str(value) for name, value in settings.items()} | packed | {
        "rewrites": rewrites
    }


@pytest.mark.parametrize("generation", ["cpu-x86_64-v3", "cuda-sm90"])
def test_a_recipe_may_ask_for_the_long_search(generation: str) -> None:
    parsed = Generation.parse(generation)
    plain, tuned = inductor_config(parsed), inductor_config(parsed, is_tuned=True)
    assert tuned == plain | {"max_autotune": True}
    asked = Recipe(inductor=InductorOptions(max_autotune=True))
    # The words of the recipe replace those of the builder in the key.
    assert asked.builder_options(EngineKind.INDUCTOR) == {"max_autotune": "True"}
    assert Recipe().builder_options(EngineKind.INDUCTOR) == {}
    assert asked.builder_options(EngineKind.TENSORRT) == {}


@pytest.mark.parametrize("is_tuned", [False, True])
def test_what_a_key_asks_for_reaches_the_compiler(
    monkeypatch: pytest.MonkeyPatch, make_plan: PlanMaker, workspace: Path, is_tuned: bool
) -> None:
    given: list[dict[str, object]] = []

    def stopped(plan: BuildSpec, config: dict[str, object], *_: object) -> None:
        given.append(config)
        raise BuildError("far enough")

    monkeypatch.setattr(inductor_packages, "build_package", stopped)
    plan = make_plan(EngineKind.INDUCTOR, str(V3))
    options = InductorBuilder().options(V3, Precision.FP32)
    options |= Recipe(inductor=InductorOptions(max_autotune=is_tuned)).builder_options(
        EngineKind.INDUCTOR
    )
    key = plan.key.model_copy(update={"builder_options": options})
    with pytest.raises(BuildError, match="far enough"):
        InductorBuilder().build(replace(plan, key=key), workspace, print)
    assert given[0].get("max_autotune", False) is is_tuned


def on_host(monkeypatch: pytest.MonkeyPatch, generation: str) -> None:
    local = Generation.parse(generation)
    monkeypatch.setattr(hosts, "local_generation", lambda platform: local)


@pytest.mark.parametrize(
    ("host", "target", "reason"),
    [
        ("cpu-x86_64-amx", "cpu-x86_64-v3", ""),
        ("cpu-x86_64-v3", "cpu-x86_64-v3", ""),
        ("cpu-x86_64-avx512", "cpu-x86_64-avx512", ""),
        ("cpu-x86_64-amx", "cpu-x86_64-avx512", "must be built on cpu-x86_64-avx512"),
        ("cpu-x86_64-v3", "cpu-x86_64-avx512", "must be built on cpu-x86_64-avx512"),
        ("cpu-x86_64-v2", "cpu-x86_64-v3", "cannot try code for cpu-x86_64-v3"),
    ],
)
def test_avx512_is_built_on_its_own_class_and_avx2_anywhere(
    monkeypatch: pytest.MonkeyPatch, host: str, target: str, reason: str
) -> None:
    on_host(monkeypatch, host)
    found = InductorBuilder().unavailable_reason(Generation.parse(target), Precision.FP32)
    assert reason in found
    assert bool(found) is bool(reason)


def test_without_a_compiler_nothing_is_built(
    monkeypatch: pytest.MonkeyPatch, make_plan: PlanMaker, workspace: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    plan = make_plan(EngineKind.INDUCTOR, str(V3))
    with pytest.raises(BuildUnavailableError, match="no C\\+\\+ compiler: g\\+\\+ is not on PATH"):
        InductorBuilder().build(plan, workspace, print)


def test_cuda_engines_are_bound_to_their_device() -> None:
    assert InductorBuilder().is_device_bound(Generation.parse("cuda-sm90"))
    assert not InductorBuilder().is_device_bound(V3)


def test_the_toolchain_names_torch_with_its_local_version() -> None:
    assert InductorBuilder().toolchain(V3) == {
        "torch": probe_device(Platform.CPU).toolchain["torch"]
    }


def test_a_bucket_without_a_dimension_is_refused(make_plan: PlanMaker, workspace: Path) -> None:
    bucket = Bucket(dims={"batch": DimRange(min=1, opt=1, max=2)})
    plan = make_plan(EngineKind.INDUCTOR, str(V3), buckets=(bucket,))
    with pytest.raises(BuildError, match="dimension 'sequence'"):
        InductorBuilder().build(plan, workspace, print)


def test_an_op_that_is_not_translated_keeps_its_own_error(
    make_plan: PlanMaker, tmp_path: Path, workspace: Path
) -> None:
    import onnx
    from onnx import parser

    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    g (int64[batch, sequence] ids, int64[batch, sequence] mask) => (string[batch] text)
    { text = StringNormalizer (ids) }
    """
    path = tmp_path / "strings.onnx"
    onnx.save(parser.parse_model(text), path)
    plan = make_plan(EngineKind.INDUCTOR, str(V3), path=path)
    with pytest.raises(UnsupportedGraphError, match="StringNormalizer"):
        InductorBuilder().build(plan, workspace, print)
