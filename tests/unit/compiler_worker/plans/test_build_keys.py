"""What is built and what is skipped, for a model version and a machine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from compiler_worker.builders.base import Builder, BuildResult, BuildSpec
from compiler_worker.devices import Devices, device_that_runs, local_devices, main_device
from compiler_worker.plans.build_keys import buckets_of, plan_for
from compiler_worker.progress import Progress
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_plan import BuildPlan
from services.contracts.builds.code_digest import build_code
from services.contracts.errors import InvalidRecipeError
from services.contracts.hardware.facts import DeviceFacts, Generation, Platform
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.batching import Batching
from services.contracts.model.calibration_recipe import Calibration
from services.contracts.model.dim_limits import DimLimits
from services.contracts.model.manifest import BlobRef, ModelVersion
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from services.contracts.selection.fallback_verdict import FallbackVerdict
from tests.conformance.tiny_model import master_record

CPU = DeviceFacts(generation="cpu-x86_64-amx", name="Some Xeon", memory_gib=64)
HOPPER = DeviceFacts(generation="cuda-sm90", name="NVIDIA H200", memory_gib=140, driver="580.1")
AMX, AVX2 = CPU.parsed_generation, Generation.parse("cpu-x86_64-v3")
SM90 = HOPPER.parsed_generation
CPU_ONLY: Devices = {Platform.CPU: CPU}
WITH_GPU: Devices = {Platform.CPU: CPU, Platform.CUDA: HOPPER}


class TableBuilder(Builder):
    """A builder that only answers questions, from given values."""

    def __init__(self, *, is_bound: bool = False, refuses: str = "") -> None:
        self._is_bound = is_bound
        self._refuses = refuses

    def unavailable_reason(self, generation: Generation, precision: Precision) -> str:
        return "no such precision here" if self._refuses == precision.value else ""

    def options(self, generation: Generation, precision: Precision) -> dict[str, str]:
        return {"precision": precision.value}

    def toolchain(self, generation: Generation) -> dict[str, str]:
        return {"torch": "2.13.0"}

    def is_device_bound(self, generation: Generation) -> bool:
        return self._is_bound

    def _build(
        self, plan: BuildSpec, generation: Generation, workspace: Path, progress: Progress
    ) -> BuildResult:
        raise AssertionError("planning builds nothing")


def always(builder: Builder) -> Callable[[EngineKind], Builder]:
    return lambda kind: builder


def version(**recipe: object) -> ModelVersion:
    return ModelVersion(
        name="tiny",
        version=1,
        master=master_record(),
        recipe=Recipe.model_validate(recipe),
        source="",
        source_fingerprint="",
        created_at="",
    )


def keys(plan: BuildPlan) -> list[BuildKey]:
    return [planned.key for planned in plan.planned]


def rows(*plans: BuildPlan) -> list[tuple[str, str, str]]:
    found = [key for plan in plans for key in keys(plan)]
    return [(key.kind.value, key.generation, key.precision.value) for key in found]


def test_every_combination_that_was_asked_for_is_planned() -> None:
    made, builder = version(kinds=["inductor"], precisions=["fp32", "bf16"]), TableBuilder()
    plans = [plan_for(made, each, WITH_GPU, always(builder)) for each in (SM90, AVX2)]
    assert sorted(rows(*plans)) == [
        ("inductor", "cpu-x86_64-v3", "bf16"),
        ("inductor", "cpu-x86_64-v3", "fp32"),
        ("inductor", "cuda-sm90", "bf16"),
        ("inductor", "cuda-sm90", "fp32"),
    ]


def test_tensorrt_is_built_for_other_generations_only_where_they_are_named() -> None:
    made, builder = version(kinds=["tensorrt"], precisions=["fp32"]), always(TableBuilder())
    assert rows(plan_for(made, AMX, CPU_ONLY, builder)) == [("tensorrt", "cpu-x86_64-amx", "fp32")]
    named = Generation.parse("cuda-sm89")
    assert rows(plan_for(made, named, CPU_ONLY, builder)) == [("tensorrt", "cuda-sm89", "fp32")]


CALIBRATION = BlobRef(sha256="5" * 64, num_bytes=1)


@pytest.mark.parametrize(
    ("generation", "calibration", "found"),
    [
        ("cpu-x86_64-v3", CALIBRATION, ["fp32"]),
        ("cpu-x86_64-amx", None, ["fp32", "bf16"]),
        ("cpu-x86_64-amx", CALIBRATION, ["fp32", "bf16", "int8"]),
        ("cuda-sm75", None, ["fp32", "fp16"]),
        ("cuda-sm90", CALIBRATION, ["fp32", "fp16", "bf16", "int8"]),
    ],
)
def test_auto_plans_what_a_generation_has_instructions_for(
    generation: str, calibration: BlobRef | None, found: list[str]
) -> None:
    made = version(kinds=["inductor"]).model_copy(update={"calibration": calibration})
    place, builder = Generation.parse(generation), always(TableBuilder())
    plan = plan_for(made, place, WITH_GPU, builder)
    assert {key.precision.value for key in keys(plan)} == set(found)
    listed = made.model_copy(
        update={
            "recipe": made.recipe.model_copy(
                update={
                    "precisions": tuple(map(Precision, found)),
                    "calibration": Calibration(path="x"),
                }
            )
        }
    )
    by_hand = plan_for(listed, place, WITH_GPU, builder)
    assert by_hand.planned == plan.planned


@pytest.mark.parametrize(
    ("generation", "calibration", "found"),
    [
        (
            "cpu-x86_64-amx",
            CALIBRATION,
            [
                "openvino int8",
                "inductor int8",
                "openvino bf16",
                "inductor bf16",
                "openvino fp32",
                "onnxruntime fp32",
                "inductor fp32",
            ],
        ),
        (
            "cpu-x86_64-avx512_bf16",
            None,
            [
                "openvino bf16",
                "inductor bf16",
                "openvino fp32",
                "onnxruntime fp32",
                "inductor fp32",
            ],
        ),
        ("cpu-x86_64-v3", None, ["openvino fp32", "onnxruntime fp32", "inductor fp32"]),
        (
            "cuda-sm90",
            None,
            ["inductor fp16", "tensorrt fp16", "inductor bf16", "tensorrt bf16"],
        ),
    ],
)
def test_what_promises_most_comes_first(
    generation: str, calibration: BlobRef | None, found: list[str]
) -> None:
    made = version().model_copy(update={"calibration": calibration})
    plan = plan_for(made, Generation.parse(generation), WITH_GPU, always(TableBuilder()))
    order = [f"{key.kind} {key.precision}" for key in keys(plan)]
    assert order[: len(found)] == found


def test_what_rounding_alone_would_have_refused_is_built_last() -> None:
    builder = always(TableBuilder())
    plain = version()
    found = FallbackVerdict(rounding={Precision.BF16: "output 'y': rel_l2 9.5e-02 found"})
    judged = plain.model_copy(update={"fallback_verdict": found})
    usual, other = (keys(plan_for(each, AMX, CPU_ONLY, builder)) for each in (plain, judged))
    is_narrow = [key.precision is Precision.BF16 for key in usual]
    assert is_narrow != sorted(is_narrow), "bf16 promises more than fp32"
    assert other == sorted(usual, key=lambda key: key.precision is Precision.BF16)


def test_what_a_builder_refuses_is_skipped_in_its_words() -> None:
    made = version(kinds=["openvino"], precisions=["fp32", "fp16"])
    plan = plan_for(made, AMX, CPU_ONLY, always(TableBuilder(refuses="fp16")))
    assert rows(plan) == [("openvino", "cpu-x86_64-amx", "fp32")]
    (skipped,) = plan.skipped
    assert (skipped.precision, skipped.reason) == (Precision.FP16, "no such precision here")


def test_a_kind_that_cannot_take_the_master_is_skipped_in_words() -> None:
    asked: list[tuple[EngineKind, Precision]] = []

    def refusal(kind: EngineKind, precision: Precision) -> str:
        asked.append((kind, precision))
        return "no such op" if kind is EngineKind.OPENVINO else ""

    made = version(kinds=["openvino", "onnxruntime"], precisions=["fp32", "fp16"])
    find = always(TableBuilder(refuses="fp16"))
    plan = plan_for(made, AMX, CPU_ONLY, find, refusal=refusal)
    assert [kind for kind, *_ in rows(plan)] == ["onnxruntime"]
    reasons = {(each.kind, each.precision): each.reason for each in plan.skipped}
    assert reasons[EngineKind.OPENVINO, Precision.FP32] == "no such op"
    # Whoever cannot build here is not asked about the master.
    assert reasons[EngineKind.OPENVINO, Precision.FP16] == "no such precision here"
    assert asked == [(each, Precision.FP32) for each in made.recipe.kinds]


def test_the_key_holds_what_the_builder_says_and_the_code_that_builds() -> None:
    made = version(kinds=["inductor"], precisions=["fp32"])
    (key,) = keys(plan_for(made, SM90, WITH_GPU, always(TableBuilder())))
    assert key.master_digest == master_record().digest
    assert key.builder_options == {"precision": "fp32", "code": build_code(EngineKind.INDUCTOR)}
    assert key.toolchain == {"torch": "2.13.0"}
    assert (key.device_name, key.device_memory_gib, key.driver) == ("", 0, "")


def test_a_device_bound_key_names_the_device() -> None:
    made = version(kinds=["tensorrt"], precisions=["fp32"])
    (key,) = keys(plan_for(made, SM90, WITH_GPU, always(TableBuilder(is_bound=True))))
    assert (key.device_name, key.device_memory_gib, key.driver) == ("NVIDIA H200", 140, "580.1")


def test_equal_plans_give_equal_keys() -> None:
    digests = [[p.digest for p in plan_for(version(), AMX, CPU_ONLY).planned] for _ in "ab"]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == len(digests[0]) > 0


class TestBuckets:
    def test_the_recipes_own_are_taken(self) -> None:
        dims = {name: DimRange(min=1, opt=2, max=3) for name in ("batch", "sequence")}
        own = (Bucket(dims=dims),)
        assert buckets_of(master_record(), Recipe(buckets=own)) == own

    def test_without_any_one_is_derived_from_the_master(self) -> None:
        (bucket,) = buckets_of(master_record(), Recipe())
        assert bucket.dims["batch"] == DimRange(min=1, opt=4, max=8)
        assert bucket.dims["sequence"] == DimRange(min=1, opt=64, max=128)

    def test_the_limits_of_the_source_hold_for_both(self) -> None:
        limits = {"sequence": DimLimits(min=2, max=48), "batch": DimLimits(min=1, max=512)}
        (bucket,) = buckets_of(master_record(), Recipe(), limits)
        assert bucket.dims["batch"] == DimRange(min=1, opt=4, max=8)
        assert bucket.dims["sequence"] == DimRange(min=2, opt=48, max=48)
        for wrong in (DimRange(min=1, opt=2, max=48), DimRange(min=2, opt=2, max=49)):
            own = Bucket(dims={"batch": DimRange(min=1, opt=1, max=1), "sequence": wrong})
            with pytest.raises(InvalidRecipeError, match=r"'sequence' is .* allows 2\.\.48"):
                buckets_of(master_record(), Recipe(buckets=(own,)), limits)

    def test_a_static_master_has_one_static_bucket(self) -> None:
        fixed = TensorSpec(name="x", datatype="FP32", shape=(1, 3))
        static = master_record().model_copy(update={"inputs": (fixed,)})
        assert buckets_of(static, Recipe()) == (Bucket(dims={}),)

    @pytest.mark.parametrize(
        "names", [("batch",), ("batch", "sequence", "width"), ("batch", "seq")]
    )
    def test_other_dimensions_than_the_masters_are_refused(self, names: tuple[str, ...]) -> None:
        wrong = Bucket(dims={name: DimRange(min=1, opt=1, max=1) for name in names})
        with pytest.raises(InvalidRecipeError, match="for each of batch, sequence, got"):
            buckets_of(master_record(), Recipe(buckets=(wrong,)))

    def test_a_request_of_no_rows_is_refused(self) -> None:
        span = DimRange(min=0, opt=1, max=8)
        both = Bucket(dims={"batch": span, "sequence": span})
        with pytest.raises(InvalidRecipeError, match="'batch' counts the rows.*least 1, got 0"):
            buckets_of(master_record(), Recipe(buckets=(both,)))
        one_by_one = Recipe(buckets=(both,), batching=Batching(batch_dim=None))
        assert buckets_of(master_record(), one_by_one) == (both,)


class TestCalibration:
    """Only engines whose scales come from samples are bound to them."""

    PRECISIONS = ("fp32", "int8_weight_only", "int8", "fp8")

    def plan(self, calibration: BlobRef | None) -> BuildPlan:
        made = version(
            kinds=["openvino"], precisions=self.PRECISIONS, calibration={"path": "rows.npz"}
        ).model_copy(update={"calibration": calibration})
        return plan_for(made, AMX, CPU_ONLY, always(TableBuilder()))

    def test_the_digest_of_the_samples_is_in_the_key(self) -> None:
        found = keys(self.plan(BlobRef(sha256="5" * 64, num_bytes=1)))
        assert {key.precision.value: key.calibration_digest for key in found} == {
            "fp32": "",
            "int8_weight_only": "",
            "int8": "5" * 64,
            "fp8": "5" * 64,
        }

    def test_a_version_without_samples_has_a_reason(self) -> None:
        plan = self.plan(None)
        assert [key.precision.value for key in keys(plan)] == ["int8_weight_only", "fp32"]
        assert [skipped.precision for skipped in plan.skipped] == ["int8", "fp8"]
        assert all("without a calibration set" in s.reason for s in plan.skipped)


class TestDevices:
    def test_this_machine_has_a_cpu(self) -> None:
        devices = local_devices()
        assert devices[Platform.CPU].generation.startswith("cpu-")
        assert main_device(devices) in devices.values()

    @pytest.mark.parametrize(
        ("generation", "devices", "found"),
        [
            ("cpu-x86_64-amx", CPU_ONLY, CPU),
            ("cpu-x86_64-v3", WITH_GPU, CPU),
            ("cuda-sm90", WITH_GPU, HOPPER),
            ("cuda-sm90", CPU_ONLY, None),
            ("cuda-sm89", WITH_GPU, None),
            ("cpu-aarch64-generic", CPU_ONLY, None),
        ],
    )
    def test_the_device_that_runs_a_generation(
        self, generation: str, devices: Devices, found: DeviceFacts | None
    ) -> None:
        assert device_that_runs(Generation.parse(generation), devices) == found
