"""`smelt advise` on a store with a real graph and engines that were proven."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from compiler_worker.builders import xla_builder
from services.cli.main import app
from services.contracts.errors import StoreError
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import Timing
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.selection.fallback_verdict import FallbackVerdict
from services.contracts.store.object_store import open_store
from services.contracts.traffic.sampled_rows import SampledRow
from tests.conformance.tiny_model import master_record, save_master, tiny_model
from tests.unit.services.controller import build_world as world


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Version 1 of model `m`, whose graph is there."""
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    return add(tmp_path, "m")


def add(folder: Path, name: str, **changes: Any) -> Registry:
    """A store with the tiny model, under a digest that repeats its name."""
    store = open_store(str(folder / "store"))
    registry = Registry(store, folder / "cache")
    (folder / name).mkdir()
    graph = store.put_blob(save_master(tiny_model(), folder / name))
    record = master_record(name * 64).model_copy(update={"files": {"model.onnx": graph}})
    registry.add_model_version(
        name=name, master=record, recipe=Recipe(), source="s", source_fingerprint="0", **changes
    )
    return registry


def prove(registry: Registry, master: str, speeds: dict[EngineKind, float]) -> None:
    """Publish an engine of each kind, so many times faster than the fallback."""
    keys = {kind: world.key(kind, master_digest=master) for kind in speeds}
    for kind, speed in speeds.items():
        (timing,) = world.paired(speed, speed)
        took = Timing.model_validate(timing.model_dump() | {"p50_s": 1 / speed})
        registry.publish_engine(world.manifest(keys[kind]), {}, world.proof(timings=(took,)))
    kinds = (EngineKind.OPENVINO, EngineKind.ONNXRUNTIME, EngineKind.INDUCTOR)
    planned = tuple(world.key(kind, master_digest=master) for kind in kinds)
    registry.write_plan(world.plan(planned, model=master[0]))


def asked(*words: str) -> Any:
    done = CliRunner().invoke(app, ["advise", *words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


@pytest.mark.usefixtures("registry")
def test_before_a_build_the_table_says_what_to_try() -> None:
    document = asked("m", "--generation", "cuda-sm90")
    (found,) = document["generations"]
    assert [each["kind"] for each in found["try"][:2]] == ["inductor", "tensorrt"]
    assert found["outcome"] is None
    assert "published for H100" in found["peak"]
    usual, largest = found["runs"]
    assert usual["sizes"] == {"batch": 4, "sequence": 64}
    assert largest["flops"] > usual["flops"] > 0
    assert document["flops_by_op"] == {"MatMul": usual["flops"]}


@pytest.mark.usefixtures("registry")
def test_what_this_host_lacks_is_left_out_before_a_plan_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(xla_builder, "missing_reason", "{} is not installed".format)
    (here,) = asked("m")["generations"]
    assert "xla" not in {each["kind"] for each in here["try"]}
    assert "xla fp32" in here["left_out"]["jax is not installed"]
    (elsewhere,) = asked("m", "--generation", "cuda-sm90")["generations"]
    assert "jax is not installed" not in elsewhere["left_out"]


def test_what_was_proven_stands_beside_it(registry: Registry) -> None:
    prove(registry, "m" * 64, {EngineKind.OPENVINO: 2.1, EngineKind.ONNXRUNTIME: 2.0})
    (found,) = asked("m")["generations"]
    assert found["generation"] == world.GENERATION
    assert found["try"][0]["kind"] == "onnxruntime"
    outcome = found["outcome"]
    assert (outcome["kind"], outcome["is_right"], outcome["num_engines"]) == (
        "openvino",
        True,
        2,
    )
    assert outcome["speed"] == pytest.approx(2.1)
    assert outcome["behind"] == pytest.approx(1.05)


def test_proofs_of_another_model_change_the_first_choice(
    registry: Registry, tmp_path: Path
) -> None:
    add(tmp_path, "n")
    speeds = {EngineKind.OPENVINO: 9.0, EngineKind.ONNXRUNTIME: 0.9}
    prove(registry, "n" * 64, speeds)
    prove(registry, "m" * 64, speeds)
    first = asked("m")["generations"][0]["try"][0]
    assert (first["kind"], first["why"]) == ("openvino", "1 proven, nearest n 9x")
    record = asked()
    assert (record["num_right"], record["num_judged"]) == (2, 2)
    assert [row["model"] for row in record["models"]] == ["m", "n"]


def test_a_master_with_two_names_counts_once(registry: Registry, tmp_path: Path) -> None:
    prove(registry, "m" * 64, {EngineKind.OPENVINO: 2.0, EngineKind.ONNXRUNTIME: 2.1})
    add(tmp_path, "n")
    own = registry.model_version("m")
    registry.add_model_version(
        name="z", master=own.master, recipe=Recipe(), source="s", source_fingerprint="0"
    )
    record = asked()
    assert (record["num_judged"], [row["model"] for row in record["models"]]) == (1, ["m"])
    assert asked("n")["generations"][0]["try"][0]["why"] == "1 proven, nearest m 2.1x"


def test_a_model_that_cannot_be_read_keeps_advice_on_no_other(
    registry: Registry, tmp_path: Path
) -> None:
    prove(registry, "m" * 64, {EngineKind.OPENVINO: 2.0, EngineKind.ONNXRUNTIME: 2.1})
    wanted = asked("m")
    add(tmp_path, "n")
    (document,) = (tmp_path / "store" / "models" / "n").rglob("*.json")
    document.write_text("{}")
    for words in (["m"], []):
        done = CliRunner().invoke(app, ["advise", *words, "--json"], catch_exceptions=False)
        assert done.stderr.startswith("n is skipped: ")
        found = json.loads(done.stdout)
        assert found == wanted if words else found["num_judged"] == 1
    with pytest.raises(StoreError, match="models/n/"):
        asked("n")


def test_a_first_choice_that_its_proof_refused_is_wrong(registry: Registry) -> None:
    prove(registry, "m" * 64, {EngineKind.OPENVINO: 2.0})
    assert asked("m")["generations"][0]["outcome"]["is_right"] is None
    registry.record_build(world.refusal(world.key(EngineKind.ONNXRUNTIME, master_digest="m" * 64)))
    assert asked("m")["generations"][0]["outcome"]["is_right"] is False
    record = asked()
    assert (record["num_right"], record["num_judged"]) == (0, 1)


def test_sampled_requests_are_the_usual_sizes(registry: Registry) -> None:
    rows = [
        SampledRow("b", {name: np.ones(length, np.int64) for name in ("ids", "mask")})
        for length in (3, 5, 5, 6, 90)
    ]
    span = (datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC))
    registry.add_sample_window("m", 1, span, rows, {"b": len(rows)})
    document = asked("m")
    (run, _) = document["generations"][0]["runs"]
    assert run["sizes"] == {"batch": 4, "sequence": 5}
    seen = document["traffic"]["sequence"]
    assert (seen["num_different"], seen["p50"], seen["largest"]) == (4, 5, 90)
    # All run at 128, the largest size of the only bucket.
    assert seen["waste"] == pytest.approx(1 - (3 + 5 + 5 + 6 + 90) / (5 * 128))


@pytest.mark.usefixtures("registry")
def test_what_rounding_alone_would_have_refused_stands_behind_the_others(tmp_path: Path) -> None:
    fault = "output 'y': rel_l2 9.5e-02 found, 2.0e-02 allowed"
    found = FallbackVerdict(rounding={Precision.FP16: f"{fault}; and 3 more"})
    add(tmp_path, "r", fallback_verdict=found)
    words = ("--generation", "cuda-sm90")
    usual, judged = (asked(name, *words)["generations"][0]["try"] for name in ("m", "r"))
    assert usual[0]["precision"] == "fp16"
    assert {each["rounding"] for each in usual} == {""}
    order = [[(each["kind"], each["precision"]) for each in rows] for rows in (usual, judged)]
    assert order[1] == sorted(order[0], key=lambda each: each[1] == "fp16")
    assert judged[-1]["rounding"] == f"{fault}; and 3 more"
    printed = CliRunner().invoke(app, ["advise", "r", *words], catch_exceptions=False)
    row = f"expected to be refused, as rounding alone is: {fault}"
    assert row in " ".join(printed.output.split())
    assert "and 3 more" not in printed.output


@pytest.mark.usefixtures("registry")
def test_why_rounding_was_not_tried_is_a_remark_and_changes_no_order(tmp_path: Path) -> None:
    why = "fp16: all answers are the same for every sample; give samples whose answers differ"
    add(tmp_path, "u", fallback_verdict=FallbackVerdict(rounding_untried=why))
    usual, untried = (asked(name, "--generation", "cuda-sm90") for name in ("m", "u"))
    assert untried["generations"][0]["try"] == usual["generations"][0]["try"]
    remark = f"whether rounding alone is refused was not tried of {why}"
    assert untried["remarks"] == [*usual["remarks"], remark]


@pytest.mark.usefixtures("registry")
def test_where_torch_cannot_compute_it_nothing_is_promised(tmp_path: Path) -> None:
    add(tmp_path, "t", fallback_verdict=FallbackVerdict(refused="no converter of Secret"))
    usual, found = (
        asked(name, "--generation", world.GENERATION)["generations"][0] for name in ("m", "t")
    )
    speeds = [
        {each["kind"]: each["middle"] for each in one["try"] if each["precision"] == "fp32"}
        for one in (usual, found)
    ]
    runtime = next(each for each in found["try"] if each["kind"] == "onnxruntime")
    assert (runtime["low"], runtime["middle"], runtime["high"]) == (1.0, 1.0, 1.0)
    # The table has both times torch's.
    ratio = speeds[0]["openvino"] / speeds[0]["onnxruntime"]
    assert speeds[1]["openvino"] == pytest.approx(ratio)
    assert "inductor fp32" in found["left_out"]["no converter of Secret"]


def test_it_is_read_by_people_and_writes_nothing(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove(registry, "m" * 64, {EngineKind.ONNXRUNTIME: 2.0})
    alone = CliRunner().invoke(app, ["advise"]).output
    assert "right, within 10 % of the best, for 0 of 0" in alone
    lone = CliRunner().invoke(app, ["advise", "m"]).output
    assert "only one is proven, so nothing is compared: onnxruntime fp32, 2.00x the fall" in lone
    prove(registry, "m" * 64, {EngineKind.OPENVINO: 1.5})
    store = sorted((tmp_path / "store").rglob("*"))
    monkeypatch.setenv("COLUMNS", "80")
    one, every = (CliRunner().invoke(app, ["advise", *words]).output for words in (["m"], []))
    assert (
        "best of 2 proven: onnxruntime fp32, 2.00x the fallback; the first choice is right" in one
    )
    assert "right, within 10 % of the best, for 1 of 1" in every
    assert all(len(line) <= 80 for line in every.splitlines())
    assert sorted((tmp_path / "store").rglob("*")) == store


@pytest.mark.usefixtures("registry")
def test_a_generation_that_is_none_is_refused() -> None:
    done = CliRunner().invoke(app, ["advise", "m", "--generation", "sm90"])
    assert done.exit_code == 1
    assert "generation 'sm90'" in str(done.exception)
