"""`smelt export triton`, read by Triton's own schema and by `smelt models add`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as theirs

from services.cli.models.add import AddOptions, add_model
from services.cli.models.asked_text import AskedText
from services.cli.output.progress import Steps
from services.contracts.errors import InvalidRequestError
from services.contracts.model.manifest import ModelVersion, ProofOutcome
from services.contracts.registry.registry import Registry
from tests.faults.judged import normal, written
from tests.unit.services.cli.export.exporting import RECIPE, Run
from tests.unit.services.replica.text_models import write_tokenizer

Publish = Callable[..., str]


def config_of(folder: Path) -> Any:
    return text_format.Parse((folder / "config.pbtxt").read_text(), theirs.ModelConfig())


def names_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_model_without_plans_leaves_as_onnx(
    version: ModelVersion, run: Run, tmp_path: Path
) -> None:
    run("export", "triton", str(tmp_path / "out"))
    folder = tmp_path / "out" / "tiny"
    assert names_in(tmp_path / "out") == [
        "tiny/1/model.onnx",
        "tiny/1/weights.bin",
        "tiny/config.pbtxt",
        "tiny/labels.txt",
    ]
    onnx.checker.check_model(str(folder / "1" / "model.onnx"))
    config = config_of(folder)
    assert (config.name, config.platform, config.backend) == ("tiny", "onnxruntime_onnx", "")
    assert config.max_batch_size == 4
    found = {t.name: (t.data_type, list(t.dims)) for t in (*config.input, *config.output)}
    assert found == {
        "ids": (theirs.TYPE_INT64, [-1]),
        "mask": (theirs.TYPE_INT64, [-1]),
        "hidden": (theirs.TYPE_FP32, [-1, 16]),
        "pooled": (theirs.TYPE_FP32, [16]),
    }
    batching = config.dynamic_batching
    assert list(batching.preferred_batch_size) == [2, 4]
    assert batching.max_queue_delay_microseconds == 2500
    assert (batching.priority_levels, batching.default_priority_level) == (2, 2)
    assert batching.priority_queue_policy[1].max_queue_size == 7
    assert batching.default_queue_policy.default_timeout_microseconds == 100_000
    assert [(g.count, g.kind) for g in config.instance_group] == [(2, 0)]
    warmups = {w.name: (w.batch_size, list(w.inputs["ids"].dims)) for w in config.model_warmup}
    assert warmups == {"batch2-sequence8": (2, [8]), "batch4-sequence16": (4, [16])}
    assert config.version_policy.latest.num_versions == 1


def test_what_left_comes_back_as_it_was(
    version: ModelVersion, registry: Registry, run: Run, tmp_path: Path
) -> None:
    run("export", "triton", str(tmp_path / "out"), "tiny")
    added = json.loads(
        run("models", "add", "back", f"triton://{tmp_path / 'out' / 'tiny'}", "--json")
    )
    back = registry.model_version("back", added["version"])
    assert (back.master.inputs, back.master.outputs) == (
        version.master.inputs,
        version.master.outputs,
    )
    assert back.master.digest == version.master.digest
    wanted = {b.label: {n: r.max for n, r in b.dims.items()} for b in RECIPE.buckets}
    assert {b.label: {n: r.max for n, r in b.dims.items()} for b in back.buckets} == wanted
    assert back.recipe.batching == RECIPE.batching
    assert (back.recipe.num_replicas, back.recipe.response_cache) == (2, True)
    assert back.recipe.labels == RECIPE.labels
    assert back.source == f"triton://{tmp_path / 'out' / 'tiny'}/1"


def test_plans_of_every_generation_leave_by_compute_capability(
    version: ModelVersion, publish: Publish, run: Run, tmp_path: Path
) -> None:
    digests = {each: publish(version, each) for each in ("cuda-sm89", "cuda-sm120")}
    told = json.loads(run("export", "triton", str(tmp_path / "out"), "--json"))["models"][0]
    config = config_of(tmp_path / "out" / "tiny")
    assert config.platform == "tensorrt_plan"
    names = {"8.9": "model_sm89.plan", "12.0": "model_sm120.plan"}
    assert dict(config.cc_model_filenames) == names
    assert [list(group.profile) for group in config.instance_group] == [["0", "1"]]
    plan = (tmp_path / "out" / "tiny" / "1" / "model_sm89.plan").read_text()
    assert plan == "a plan for cuda-sm89 passed"
    found = {capability: plan["engine"] for capability, plan in told["plans"].items()}
    assert found == {"8.9": digests["cuda-sm89"], "12.0": digests["cuda-sm120"]}
    assert {plan["library"] for plan in told["plans"].values()} == {"tensorrt 10.14"}


@pytest.mark.parametrize(
    ("outcome", "toolchain", "why"),
    [
        (ProofOutcome.NOT_RUN, {}, "not proven"),
        (ProofOutcome.FAILED, {}, "proof failed: as it is"),
        (ProofOutcome.PASSED, {"tensorrt_rtx": "1.7"}, "TensorRT-RTX"),
    ],
)
def test_one_generation_without_a_proven_plan_makes_it_onnx(
    version: ModelVersion,
    publish: Publish,
    run: Run,
    tmp_path: Path,
    outcome: ProofOutcome,
    toolchain: dict[str, str],
    why: str,
) -> None:
    publish(version, "cuda-sm89")
    publish(version, "cuda-sm90", outcome, **toolchain)
    told = json.loads(run("export", "triton", str(tmp_path / "a"), "--json"))["models"][0]
    assert told["platform"] == "onnxruntime_onnx"
    assert told["remarks"][0].startswith("no plan for 9.0: ")
    assert why in told["remarks"][0]
    assert not [name for name in names_in(tmp_path / "a") if name.endswith(".plan")]
    run("export", "triton", str(tmp_path / "b"), "--generation", "cuda-sm89")
    assert config_of(tmp_path / "b" / "tiny").platform == "tensorrt_plan"
    run("export", "triton", str(tmp_path / "c"), "--backend", "onnxruntime_onnx")
    assert config_of(tmp_path / "c" / "tiny").platform == "onnxruntime_onnx"


def test_a_plan_that_is_asked_for_and_not_proven_is_refused(
    version: ModelVersion, publish: Publish, run: Run, tmp_path: Path
) -> None:
    publish(version, "cuda-sm89", ProofOutcome.FAILED)
    words = ("export", "triton", str(tmp_path / "out"), "--backend", "tensorrt_plan")
    assert "proof failed" in run(*words, code=1)
    assert not (tmp_path / "out").exists()


def test_plans_of_tensorrt_rtx_leave_where_they_are_asked_for(
    version: ModelVersion, publish: Publish, run: Run, tmp_path: Path
) -> None:
    publish(version, "cuda-sm89", tensorrt_rtx="1.7")
    text = run("export", "triton", str(tmp_path / "out"), "--backend", "tensorrt_plan")
    assert "loads in tensorrt_rtx 1.7 alone" in " ".join(text.split())


def test_a_folder_that_holds_something_is_refused(
    version: ModelVersion, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").touch()
    assert "notes.txt found, an empty folder wanted" in run(
        "export", "triton", str(tmp_path / "out"), code=1
    )
    assert names_in(tmp_path / "out") == ["notes.txt"]


def test_a_model_is_written_whole_or_not_at_all(
    version: ModelVersion, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise InvalidRequestError("no room")

    monkeypatch.setattr("shutil.copyfile", full)
    run("export", "triton", str(tmp_path / "out"), code=1)
    assert names_in(tmp_path / "out") == []


def test_the_newest_version_leaves_under_its_number(
    version: ModelVersion, registry: Registry, run: Run, tmp_path: Path
) -> None:
    registry.add_model_version(
        name="tiny", master=version.master, recipe=RECIPE, source="b", source_fingerprint="b"
    )
    registry.set_version_weights("tiny", {1: 5, 2: 95}, who="test")
    text = run("export", "triton", str(tmp_path / "out"))
    assert "tiny/2/model.onnx" in names_in(tmp_path / "out")
    assert not (tmp_path / "out" / "tiny" / "1").exists()
    assert "older versions and weights: skipped" in " ".join(text.split())


def test_labels_of_several_lines_keep_their_places(
    version: ModelVersion, registry: Registry, run: Run, tmp_path: Path
) -> None:
    labels = ("one\nline", *RECIPE.labels[1:])
    recipe = RECIPE.model_copy(update={"labels": labels})
    registry.add_model_version(
        name="tiny", master=version.master, recipe=recipe, source="b", source_fingerprint="b"
    )
    run("export", "triton", str(tmp_path / "out"))
    lines = (tmp_path / "out" / "tiny" / "labels.txt").read_text().split("\n")
    assert lines == ["one line", *RECIPE.labels[1:], ""]


def test_a_tensor_of_one_number_for_each_row_gets_a_dimension(
    registry: Registry, run: Run, tmp_path: Path
) -> None:
    axis = "axes = Constant <value = int64[1] {1}> ()"
    graph = (
        "g (float[batch, 8] x) => (float[batch] y) "
        f"{{ {axis} h = MatMul (x, w) y = Squeeze (h, axes) }}"
    )
    path = written(tmp_path, graph, w=normal(8, 1))
    add_model(registry, "score", str(path), AddOptions(), Steps(is_quiet=True))
    run("export", "triton", str(tmp_path / "out"), "score")
    (output,) = config_of(tmp_path / "out" / "score").output
    assert (list(output.dims), list(output.reshape.shape)) == ([1], [])
    assert output.HasField("reshape")


def test_a_model_of_text_leaves_with_its_tokenizer_and_the_inputs_of_its_file(
    registry: Registry, run: Run, tmp_path: Path
) -> None:
    graph = (
        "g (int64[batch, sequence] input_ids) => (float[batch, sequence, 4] y) "
        "{ y = Gather (w, input_ids) }"
    )
    path = written(tmp_path, graph, w=normal(8, 4))
    tokenizer = write_tokenizer(tmp_path)
    options = AddOptions(text=AskedText(tokenizer=tokenizer))
    add_model(registry, "words", str(path), options, Steps(is_quiet=True))
    text = run("export", "triton", str(tmp_path / "out"), "words")
    folder = tmp_path / "out" / "words"
    # Triton refuses an input that the ONNX file has not, optional ones too.
    assert [each.name for each in config_of(folder).input] == ["input_ids"]
    assert (folder / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    assert "which tokenizer.json beside it makes" in " ".join(text.split())
