"""Plans as documents, and which of their keys a run takes up."""

from pathlib import Path

import pytest

from compiler_worker.devices import Devices, local_devices, main_device
from compiler_worker.plans.build_keys import Wanted, plan_for
from compiler_worker.plans.plan_document import (
    chosen,
    keep_plans,
    plan_document,
    plan_lines,
)
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_plan import BuildPlan
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.errors import InvalidRequestError, NotFoundError
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.hardware.node_class import NodeClass
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.unit.compiler_worker.plans.test_build_keys import (
    CPU,
    CPU_ONLY,
    HOPPER,
    WITH_GPU,
    TableBuilder,
    always,
    version,
)

SM90, AMX = Generation.parse("cuda-sm90"), Generation.parse("cpu-x86_64-amx")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


def record(key: BuildKey, outcome: BuildOutcome, reason: str = "") -> BuildRecord:
    return BuildRecord(key=key, outcome=outcome, stage="build", reason=reason, started_at="")


class TestPlan:
    def test_on_a_device_it_is_for_nodes_as_this_one(self) -> None:
        model = version(kinds=["inductor"], precisions=["fp32", "bf16"])
        find = always(TableBuilder(is_bound=True, refuses="bf16"))
        plan = plan_for(model, SM90, WITH_GPU, find)
        assert (plan.model, plan.version, plan.facts) == ("tiny", 1, HOPPER)
        assert plan.node_class == NodeClass.from_facts(HOPPER)
        assert [(p.key.precision, p.is_anywhere) for p in plan.planned] == [(Precision.FP32, False)]
        assert plan.planned[0].key.device_name == HOPPER.name
        assert [(s.precision, s.reason) for s in plan.skipped] == [
            ("bf16", "no such precision here")
        ]

    def test_elsewhere_it_is_for_a_generation_and_holds_what_needs_no_device(self) -> None:
        model = version(kinds=["tensorrt"], precisions=["fp32"])
        away = plan_for(model, SM90, CPU_ONLY, always(TableBuilder()))
        assert (away.facts, away.node_class) == (None, NodeClass(generation="cuda-sm90"))
        assert [p.is_anywhere for p in away.planned] == [True]
        here = plan_for(model, SM90, WITH_GPU, always(TableBuilder()), is_elsewhere=True)
        assert (here.facts, here.node_class, here.planned) == (None, away.node_class, away.planned)
        bound = always(TableBuilder(is_bound=True))
        tuned = plan_for(model, SM90, WITH_GPU, bound, is_elsewhere=True)
        assert tuned.planned == ()
        assert "a cuda-sm90 node must be there" in tuned.skipped[0].reason

    def test_what_needs_no_device_says_so_on_a_device_too(self) -> None:
        model = version(kinds=["tensorrt", "onnxruntime"])
        plan = plan_for(model, SM90, WITH_GPU, always(TableBuilder()))
        assert {p.key.kind.value: p.is_anywhere for p in plan.planned} == {
            "tensorrt": True,
            "onnxruntime": False,
        }

    def test_it_is_told_in_lines_and_as_a_document(self) -> None:
        model = version(kinds=["openvino"], precisions=["fp32", "bf16"])
        plan = plan_for(model, AMX, CPU_ONLY, always(TableBuilder(refuses="bf16")))
        (digest,) = [p.digest for p in plan.planned]
        assert plan_document(plan)["planned"][0]["digest"] == digest
        built, skipped = plan_lines(plan)
        assert digest[:12] in built
        assert skipped.endswith("skipped: no such precision here")

    def test_it_is_kept_once_for_each_wanted_generation(
        self, registry: Registry, tmp_path: Path
    ) -> None:
        shop = WorkerContext(
            registry=registry,
            settings=CompilerSettings(cache_dir=tmp_path / "cache"),
            devices=CPU_ONLY,
        )
        model = version(kinds=["openvino"])
        for _ in range(2):
            keep_plans(model, Wanted(), shop)
            keep_plans(model, Wanted(generations=(SM90,)), shop)
        found = [plan.node_class.generation for plan in registry.build_plans("tiny", 1)]
        assert sorted(found) == ["cpu-x86_64-amx", "cuda-sm90"]
        assert len(open_store(str(tmp_path / "store")).list("plans/")) == 2


def test_a_precision_that_auto_leaves_out_here_is_planned_where_it_is_named_and_not_kept(
    registry: Registry, tmp_path: Path
) -> None:
    settings = CompilerSettings(cache_dir=tmp_path / "cache")
    devices: Devices = {Platform.CPU: CPU.model_copy(update={"generation": "cpu-x86_64-v3"})}
    shop = WorkerContext(registry=registry, settings=settings, devices=devices)
    wanted = Wanted(precisions=(Precision.BF16,))
    (plan,) = keep_plans(version(kinds=["onnxruntime"]), wanted, shop)
    assert "bf16" in {each.precision for each in plan.skipped}
    (kept,) = registry.build_plans("tiny", 1)
    assert "bf16" not in {each.precision for each in kept.skipped}
    assert kept.planned == plan.planned


@pytest.mark.parametrize(
    ("wanted", "option", "has", "added"),
    [
        (
            Wanted(kinds=(EngineKind.OPENVINO, EngineKind.TENSORRT)),
            "--kind tensorrt",
            "kinds: [openvino, onnxruntime]",
            "kinds: [openvino, onnxruntime, tensorrt]",
        ),
        (
            Wanted(precisions=(Precision.BF16,)),
            "--precision bf16",
            "precisions: [fp32]",
            "precisions: [fp32, bf16]",
        ),
    ],
)
def test_what_the_recipe_leaves_out_is_refused(
    registry: Registry, tmp_path: Path, wanted: Wanted, option: str, has: str, added: str
) -> None:
    settings = CompilerSettings(cache_dir=tmp_path / "cache")
    shop = WorkerContext(registry=registry, settings=settings, devices=CPU_ONLY)
    with pytest.raises(InvalidRequestError) as refused:
        keep_plans(version(kinds=["openvino", "onnxruntime"], precisions=["fp32"]), wanted, shop)
    assert str(refused.value) == (
        f"{option}: the recipe of tiny version 1 has {has}; to add one: smelt models add tiny "
        f"SOURCE --recipe FILE, where FILE is its recipe with {added}"
    )
    assert registry.build_plans("tiny", 1) == []


class TestChoice:
    @pytest.fixture
    def plan(self) -> BuildPlan:
        model = version(kinds=["openvino", "onnxruntime"], precisions=["fp32"])
        return plan_for(model, AMX, CPU_ONLY, always(TableBuilder()))

    def test_everything_by_default(self, registry: Registry, plan: BuildPlan) -> None:
        assert chosen([plan], Wanted(), registry) == [plan]

    def test_only_the_kinds_and_precisions_that_are_named(
        self, registry: Registry, plan: BuildPlan
    ) -> None:
        (found,) = chosen([plan], Wanted(kinds=(EngineKind.OPENVINO,)), registry)
        assert [each.key.kind for each in found.planned] == [EngineKind.OPENVINO]
        (found,) = chosen([plan], Wanted(precisions=(Precision.BF16,)), registry)
        assert found.planned == ()

    def test_only_the_keys_that_are_named(self, registry: Registry, plan: BuildPlan) -> None:
        first, second = plan.planned
        wanted = Wanted(keys=(second.digest, "0" * 64))
        assert chosen([plan], wanted, registry)[0].planned == (second,)
        with pytest.raises(NotFoundError, match="key 000000000000 is not planned"):
            chosen([plan], Wanted(keys=("0" * 64,)), registry)
        registry.record_build(record(first.key, BuildOutcome.FAILED))
        assert chosen([plan], Wanted(keys=(first.digest,)), registry)[0].planned == (first,)

    def test_untried_leaves_out_what_failed_last(self, registry: Registry, plan: BuildPlan) -> None:
        first, second = plan.planned
        registry.record_build(record(first.key, BuildOutcome.PROOF_FAILED, "it differs"))
        for outcome in (BuildOutcome.FAILED, BuildOutcome.BUILT):
            registry.record_build(record(second.key, outcome))
        (found,) = chosen([plan], Wanted(is_untried=True), registry)
        assert found.planned == (second,)
        (skipped,) = found.skipped
        assert skipped.kind == first.key.kind
        assert skipped.reason == "failed when it was tried last: it differs"


class TestSimulatedMachine:
    def test_it_says_it_is_of_the_generation(self) -> None:
        lower = local_devices("cpu-x86_64-v3")
        assert main_device(lower).generation == "cpu-x86_64-v3"
        gpu: Devices = local_devices("cuda-sm89")
        assert main_device(gpu).generation == "cuda-sm89"
        assert gpu[Platform.CPU].parsed_generation.platform is Platform.CPU

    def test_a_wrong_name_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match="generation 'sm89'"):
            local_devices("sm89")
