"""Models of a Triton repository: what is taken, what is left out, what is refused."""

from pathlib import Path

import pytest

from compiler_worker.master.fingerprint import fingerprint
from compiler_worker.master.opened import OpenedMaster, open_master
from compiler_worker.master.source import TritonModel, source_from_text
from compiler_worker.master.triton.config_text import read_config
from compiler_worker.master.triton.repository import onnx_file, versions_of
from services.contracts.errors import InvalidModelError
from services.contracts.model.dim_limits import DimLimits
from tests.conformance.tiny_model import save_master, tiny_model

# As guides write it, with what Smelt has no word for.
WHOLE = """
# a ranker
name: "tiny"
platform: "onnxruntime_onnx"
max_batch_size: 16
input [
  { name: "ids" data_type: TYPE_INT64 dims: [ 32 ] },
  { name: "mask" data_type: TYPE_INT64 dims: [ 32 ] }
]
output { name: "pooled" data_type: TYPE_FP32 dims: 16 label_filename: "labels.txt" }
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 500
  preserve_ordering: true
  priority_levels: 2
  default_priority_level: 1
  default_queue_policy { default_timeout_microseconds: 2000 max_queue_size: 9 }
  priority_queue_policy { key: 2 value { timeout_action: DELAY default_timeout_microseconds: 7 } }
}
instance_group [
  { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] rate_limiter { resources { name: "r" } } }
]
optimization { execution_accelerators { gpu_execution_accelerator : [ { name : "tensorrt" } ] } }
parameters { key: "intra_op_thread_count" value: { string_value: "2" } }
version_policy: { all { } }
response_cache { enable: true }
"""


def model(tmp_path: Path, config: str | None = WHOLE, versions: tuple[int, ...] = (1,)) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    for version in versions:
        (folder / str(version)).mkdir()
        save_master(tiny_model(seed=version), folder / str(version))
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    (folder / "labels.txt").write_text("".join(f"l{i}\n" for i in range(16)))
    return folder


def opened(folder: Path, tmp_path: Path) -> OpenedMaster:
    source = source_from_text(f"triton://{folder}")
    return open_master(source, tmp_path / "master", lambda line: None)


def test_a_configuration_becomes_a_recipe(tmp_path: Path) -> None:
    master = opened(model(tmp_path), tmp_path)
    assert master.recipe is not None
    assert master.recipe.model_dump(mode="json", exclude_defaults=True)["batching"] == {
        "max_delay_ms": 0.5,
        "max_queue": 9,
        "priority_levels": 2,
        "default_priority": 1,
        # Requests cannot change a timeout that they may not override; one that delays is none.
        "default_queue_policy": {"default_timeout_ms": 2.0, "max_timeout_ms": 2.0},
        "queue_policies": {"2": {}},
    }
    assert (master.recipe.num_replicas, master.recipe.response_cache) == (4, True)
    assert master.dim_limits == {
        "batch": DimLimits(min=1, max=16),
        "sequence": DimLimits(min=32, max=32),
    }
    labels = [bucket.label for bucket in master.recipe.buckets]
    assert labels == ["batch4-sequence32", "batch8-sequence32", "batch16-sequence32"]


@pytest.mark.parametrize(
    "line",
    [
        "optimization: skipped: Smelt builds engines itself",
        "instance_group.rate_limiter: skipped: Smelt has no such setting",
        "parameters: skipped: options of Triton's backend",
        "preserve_ordering: skipped",
        "timeout_action DELAY: skipped",
        "taken as labels: [l0, l1,",
        "instance_group KIND_GPU: the fleet's devices",
        "taken as batching: {max_delay_ms: 0.5,",
        "taken as num_replicas: 4",
        "batch: 1 to 16",
        "sequence: 32 to 32",
        "taken as buckets batch4-sequence32, batch8-sequence32, batch16-sequence32",
    ],
)
def test_each_part_is_told(tmp_path: Path, line: str) -> None:
    remarks = opened(model(tmp_path), tmp_path).remarks
    assert [each for each in remarks if each.startswith(f"config.pbtxt: {line}")], remarks


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ("output { name: 'pooled' }", "output hidden: not in the configuration, so Triton"),
        (
            "max_batch_size: 4 input { name: 'ids' dims: -1 allow_ragged_batch: true }",
            "ids: allow_ragged_batch skipped: requests have",
        ),
        (
            (
                "output { name: 'pooled' label_filename: 'labels.txt' } "
                "output { name: 'hidden' label_filename: 'labels.txt' }"
            ),
            "hidden: label_filename skipped: pooled has labels",
        ),
        ("runtime: 'x.so'", "runtime: skipped: Smelt has its own"),
        ("name: 'tiny'", "no dynamic_batching: waiting requests are joined all the same"),
    ],
)
def test_what_is_set_of_tensors_and_left_out_is_told(
    tmp_path: Path, config: str, line: str
) -> None:
    remarks = opened(model(tmp_path, config), tmp_path).remarks
    assert [each for each in remarks if each.startswith(f"config.pbtxt: {line}")], remarks


def test_what_labels_scores_are_comes_back_from_an_export(tmp_path: Path) -> None:
    scores = "parameters { key: 'label_scores' value { string_value: '%s' } }"
    found = opened(model(tmp_path, scores % "sigmoid"), tmp_path)
    assert found.recipe
    assert found.recipe.label_scores == "sigmoid"
    assert not [each for each in found.remarks if "parameters: skipped" in each]
    folder = tmp_path / "odd"
    folder.mkdir()
    with pytest.raises(InvalidModelError, match="label_scores 'odd': expected one of softmax"):
        opened(model(folder, scores % "odd"), folder)


def test_labels_end_with_a_line_feed_alone(tmp_path: Path) -> None:
    folder = model(tmp_path)
    labels = ["a\u2028b", "c\x0cd", *(f"l{i}" for i in range(14))]
    (folder / "labels.txt").write_text("\n".join(labels) + "\n", encoding="utf-8")
    recipe = opened(folder, tmp_path).recipe
    assert recipe
    assert list(recipe.labels) == labels


def test_fields_that_no_schema_of_ours_has_are_named_once(tmp_path: Path) -> None:
    folder = model(tmp_path)
    assert read_config(folder).unknown == ("instance_group.rate_limiter", "optimization")


def test_warm_ups_give_the_sizes(tmp_path: Path) -> None:
    inputs = "".join(
        f'inputs {{ key: "{name}" value {{ data_type: TYPE_INT64 dims: 64 zero_data: true }} }}'
        for name in ("ids", "mask")
    )
    config = f'max_batch_size: 8 model_warmup {{ name: "w" batch_size: 2 {inputs} }}'
    master = opened(model(tmp_path, config), tmp_path)
    assert master.recipe is not None
    labels = [bucket.label for bucket in master.recipe.buckets]
    assert labels == ["batch2-sequence64", "batch8-sequence64"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            (
                'max_batch_size: 8 model_warmup { name: "w" batch_size: 9 inputs { key: "ids" '
                "value { data_type: TYPE_INT64 dims: 64 zero_data: true } } }"
            ),
            "has 9 of 'batch', and max_batch_size and dims have 1 to 8: correct either",
        ),
        (WHOLE.replace("[ 4, 8 ]", "[ 4, 32 ]"), "has 32 of 'batch', .* have 1 to 16"),
    ],
)
def test_sizes_beyond_the_largest_batch_are_refused(
    tmp_path: Path, config: str, words: str
) -> None:
    with pytest.raises(InvalidModelError, match=words):
        opened(model(tmp_path, config), tmp_path)


def test_a_size_that_is_fixed_to_one_is_no_number_of_rows(tmp_path: Path) -> None:
    master = opened(model(tmp_path, WHOLE.replace("dims: [ 32 ]", "dims: [ 1 ]")), tmp_path)
    assert master.recipe is not None
    labels = [bucket.label for bucket in master.recipe.buckets]
    assert labels == ["batch4-sequence1", "batch8-sequence1", "batch16-sequence1"]


def test_sizes_that_nothing_says_are_those_by_default(tmp_path: Path) -> None:
    config = "max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 }"
    master = opened(model(tmp_path, config), tmp_path)
    assert master.recipe is not None
    assert master.recipe.buckets == ()
    assert master.dim_limits == {"batch": DimLimits(min=1, max=8)}
    assert "they do not name every size" in master.remarks[-1]


@pytest.mark.parametrize(
    ("policy", "numbers"),
    [
        ("", [5]),
        ("version_policy { latest { num_versions: 2 } }", [3, 5]),
        ("version_policy { specific { versions: [ 1, 3, 9 ] } }", [1, 3]),
        ("version_policy { all {} }", [1, 3, 5]),
    ],
)
def test_versions_are_those_that_triton_would_serve(
    tmp_path: Path, policy: str, numbers: list[int]
) -> None:
    folder = model(tmp_path, policy, versions=(1, 3, 5))
    (folder / "05").mkdir()
    source = source_from_text(f"triton://{folder}")
    assert isinstance(source, TritonModel)
    assert [each.version for each in versions_of(source)] == numbers
    assert onnx_file(source) == folder / str(numbers[-1]) / "model.onnx"


def test_one_version_is_named_by_its_folder(tmp_path: Path) -> None:
    folder = model(tmp_path, versions=(1, 3))
    source = source_from_text(f"triton://{folder}/1")
    assert source == TritonModel(folder=folder, version=1)
    assert str(source) == f"triton://{folder}/1"
    assert isinstance(source, TritonModel)
    assert onnx_file(source) == folder / "1" / "model.onnx"


def test_a_model_needs_no_configuration(tmp_path: Path) -> None:
    master = opened(model(tmp_path, None), tmp_path)
    assert (master.dim_limits, master.remarks) == ({}, ())


def test_a_folder_of_a_model_with_weights_is_found(tmp_path: Path) -> None:
    folder = model(tmp_path, 'default_model_filename: "net.onnx"', versions=())
    (folder / "1" / "net.onnx").mkdir(parents=True)
    path = save_master(tiny_model(), folder / "1" / "net.onnx")
    assert onnx_file(TritonModel(folder=folder)) == path


def test_another_configuration_is_another_source(tmp_path: Path) -> None:
    folder = model(tmp_path)
    source = TritonModel(folder=folder)
    first = fingerprint(source)
    assert fingerprint(TritonModel(folder=folder, version=1)) == first
    (folder / "config.pbtxt").write_text(WHOLE.replace("500", "600"))
    assert fingerprint(source) != first


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ('platform: "tensorrt_plan"', "a plan is compiled, .* add the ONNX file"),
        ('backend: "tensorrt"', "a plan is compiled"),
        ('default_model_filename: "model.plan"', r"model\.plan found, onnxruntime_onnx wanted"),
        ("ensemble_scheduling { step { model_name: 'a' } }", "Smelt chains no models"),
        ('backend: "python"', "export what computes to ONNX"),
        ('platform: "onnxruntime_onnx" sequence_batching { }', "Smelt does not keep"),
        ("max_batch_size: many", r"config\.pbtxt:1:17 : .*expected a ModelConfig"),
        (
            "version_policy { specific { versions: 7 } }",
            "none of its versions is in version_policy",
        ),
        ("output { name: 'pooled' label_filename: 'none.txt' }", "label_filename cannot be read"),
        ('default_model_filename: "b.onnx"', r"b\.onnx: no such file; there is model\.onnx"),
        ("input { name: 'ids' dims: 4 }", "correct either"),
        (
            "max_batch_size: 4 input { name: 'ids' dims: 8 } input { name: 'mask' dims: 16 }",
            "input 'mask': dims fix 'sequence', which .* at 16, those of another input at 8",
        ),
        (
            "input { name: 'idz' data_type: TYPE_INT64 dims: [-1, -1] }",
            "input 'idz' of TYPE_INT64 found, and ids INT64, mask INT64 in the ONNX file",
        ),
        ("input { name: 'ids' data_type: TYPE_FP32 dims: [-1, -1] }", "'ids' of TYPE_FP32 found"),
        ("output { name: 'pooled' data_type: TYPE_FP16 dims: 16 }", "hidden FP32, pooled FP32"),
        ("dynamic_batching { priority_levels: 99 default_priority_level: 1 }", "no recipe like it"),
    ],
)
def test_what_cannot_be_taken_is_refused(tmp_path: Path, config: str, told: str) -> None:
    folder = model(tmp_path, config)
    with pytest.raises(InvalidModelError, match=told):
        opened(folder, tmp_path)


def test_a_repository_is_told_as_a_loop(tmp_path: Path) -> None:
    model(tmp_path)
    with pytest.raises(InvalidModelError, match="a repository of tiny; .*for model in"):
        onnx_file(TritonModel(folder=tmp_path))
    with pytest.raises(InvalidModelError, match="no such folder"):
        onnx_file(TritonModel(folder=tmp_path / "none"))
