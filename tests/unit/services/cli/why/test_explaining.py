"""`smelt why` on a real store; no fleet runs."""

import os
import re
import sys

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.events import Event, EventKind
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import FailedSample, ProofOutcome
from services.contracts.model.recipe import InputRecipe, Recipe
from services.contracts.registry import event_log
from services.contracts.registry.registry import Registry
from services.contracts.selection.joint_run import JointRun, JointTiming
from services.contracts.store.object_store import ObstoreArtifactStore
from services.contracts.terms import proof_terms
from services.controller.explain import why_cases
from tests.unit.services.cli.why.explained import (
    CODE_WORD,
    INDUCTOR,
    OPENVINO,
    ORT,
    SKIPPED,
    TERMS,
    TIMING,
    side,
    smelt,
    smelt_json,
)
from tests.unit.services.controller import build_world as world


class TestWhy:
    def test_each_planned_key_is_explained(self, registry: Registry) -> None:
        document = smelt_json("why", "m")
        (case,) = document["generations"]
        assert case["generation"] == world.GENERATION
        assert (case["is_live"], case["skipped"]) == (False, [SKIPPED.model_dump()])
        assert f"would serve with onnxruntime fp32 {ORT.digest()[:12]}" in case["serves"]
        by_kind = {planned["kind"]: planned for planned in case["planned"]}
        ort, openvino, inductor = (by_kind[k] for k in ("onnxruntime", "openvino", "inductor"))
        assert (ort["key_state"], ort["rank"], ort["p50_s"][0]["p50_s"]) == ("proven", 1, 0.002)
        assert (openvino["key_state"], openvino["rank"]) == ("unproven", None)
        assert "needs such a device" in openvino["reason"]
        assert (inductor["key_state"], inductor["reason"]) == ("quarantined", "no compiler")
        assert inductor["num_failures"] == 3

    def test_what_another_release_planned_on_this_device_is_explained(
        self, registry: Registry
    ) -> None:
        other = world.NODE_CLASS.model_copy(update={"toolchain": "0" * 16})
        later = "2026-02-01T00:00:00.000+00:00"
        registry.write_plan(world.plan((ORT,), node_class=other, created_at=later))
        (case,) = smelt_json("why", "m")["generations"]
        assert [planned["kind"] for planned in case["planned"]] == ["onnxruntime"]

    def test_for_people_the_best_comes_first_and_the_way_out_is_named(
        self, registry: Registry
    ) -> None:
        text = smelt("why", "m", "--generation", world.GENERATION)
        assert "quarantined after 3 failures: no compiler" in text
        assert "smelt rebuild m" in text.replace("\n", " ")
        assert "2.00 ms" in text
        assert text.index("onnxruntime") < text.index("inductor")
        assert "tensorrt needs a GPU" in text
        seen = "1 of 2 kinds of faults would be refused, blind to '2 % off' (accepted)"
        assert f"onnxruntime fp32: output 'y': {seen}" in text

    def test_each_precision_says_how_close_it_is_or_why_it_is_not_built(
        self, registry: Registry
    ) -> None:
        (case,) = smelt_json("why", "m")["generations"]
        assert case["accuracy"] == "close"
        fp32, bf16 = case["precisions"]["fp32"], case["precisions"]["bf16"]
        assert fp32["distances"]["rel_l2"] == 1e-5
        reason = "cpu-x86_64-v3 has no bf16 instructions: AVX512_BF16 or AMX is needed"
        assert bf16 == {"not_built": reason}
        lines = " ".join(smelt("why", "m").split())
        assert "accuracy: close fp32: at most relative L2 1e-05" in lines
        assert f"bf16: not built: {reason} int8: not built: " in lines

    def test_engines_of_other_generations_are_counted_and_not_listed(
        self, registry: Registry
    ) -> None:
        foreign = [
            world.key(generation=f"cuda-sm{number}", proof_terms=TERMS) for number in (80, 89)
        ]
        for each in foreign:
            registry.publish_engine(world.manifest(each), {}, world.proof())
        text = " ".join(smelt("why", "m", "--generation", world.GENERATION).split())
        assert "engines for other generations: 2 (smelt engines m)" in text
        assert not any(each.digest()[:12] in text for each in foreign)

    def test_a_failed_key_names_its_next_attempt(self, registry: Registry) -> None:
        registry.record_build(world.record(OPENVINO, reason="no memory"))
        (case,) = smelt_json("why", "m")["generations"]
        (openvino,) = [p for p in case["planned"] if p["kind"] == "openvino"]
        assert openvino["key_state"] == "failed"
        assert openvino["next_attempt_at"] == "2026-01-01T00:00:32+00:00"

    def test_a_proof_that_failed_at_a_sample_names_the_command_that_runs_it_again(
        self, registry: Registry
    ) -> None:
        worst = FailedSample(bucket="b", sizes={}, variant="full", checks=(), allowed={})
        failed = world.proof(ProofOutcome.FAILED, reason="it differs", worst=worst)
        record = world.record(OPENVINO, BuildOutcome.PROOF_FAILED, reason="it differs")
        registry.record_build(record.model_copy(update={"proof": failed}))
        text = smelt("why", "m")
        command = f"{sys.executable} -m compiler_worker replay {OPENVINO.digest()[:12]}"
        assert f"{command} --store-url {os.environ['SMELT_HOME']}/store" in text
        assert f"replay {INDUCTOR.digest()[:12]}" not in text

    def test_engines_that_are_not_planned_any_more_are_passed_over_aloud(
        self, registry: Registry
    ) -> None:
        old = world.key(proof_terms=TERMS, toolchain={"torch": "1.0"})
        registry.publish_engine(world.manifest(old), {}, world.proof())
        assert "torch 1.0 wanted, 2.13.0 found" in smelt("why", "m")

    def test_engines_of_another_model_of_the_same_master_are_not_its_own(
        self, registry: Registry
    ) -> None:
        recipe = Recipe(inputs={"x": InputRecipe(high=9)})
        registry.add_model_version(
            name="new", master=world.MASTER, recipe=recipe, source="s", source_fingerprint="1"
        )
        terms = proof_terms(recipe, world.key().precision, None)
        key = world.key(EngineKind.ONNXRUNTIME, proof_terms=terms)
        registry.write_plan(world.plan((key,), model="new"))
        (case,) = smelt_json("why", "new")["generations"]
        assert case["passed_over"] == []
        assert case["serves"].endswith("fallback: no proven engine of this model is published")
        # One that an older version was planned with is.
        changed = {"recipe": Recipe(inputs={"x": InputRecipe(high=8)})}
        registry.publish_engine(world.manifest(key), {}, world.proof())
        registry.add_changed_version(registry.model_version("new"), changed)
        registry.write_plan(world.plan((INDUCTOR,), model="new", version=2))
        (case,) = smelt_json("why", "new")["generations"]
        assert [each["digest"] for each in case["passed_over"]] == [key.digest()]
        assert case["serves"].endswith("fallback: no engine is published for its recipe")

    def test_the_run_that_decided_is_named(self, registry: Registry) -> None:
        """By their proofs ORT is faster, timed together it is not, and the gate holds it back."""
        proof = world.proof(timings=(TIMING.model_copy(update={"p50_s": 0.003}),))
        registry.add_proof(OPENVINO.digest(), proof)
        seconds = {ORT.digest(): 0.004, OPENVINO.digest(): 0.001}
        assert proof.device is not None
        shape = JointTiming(
            bucket="b",
            sizes={},
            eager=side(0.01),
            fallback=side(0.002),
            engines={digest: side(p50_s) for digest, p50_s in seconds.items()},
        )
        run = JointRun(
            master_digest=world.MASTER.digest,
            device=proof.device,
            shapes=(shape,),
            created_at=world.AT,
        )
        (before,) = smelt_json("why", "m")["generations"]
        assert (before["decided_by"], "onnxruntime" in before["serves"]) == ("", True)
        registry.add_joint_run(run)
        (after,) = smelt_json("why", "m")["generations"]
        decided = "timed together on 2026-01-01 00:00:00Z, 2 candidates"
        assert (after["decided_by"], "openvino" in after["serves"]) == (decided, True)
        by_kind = {planned["kind"]: planned for planned in after["planned"]}
        assert [by_kind[k]["speed_over_fallback"] for k in ("onnxruntime", "openvino")] == [0.5, 2]
        assert f"the rank is by engines {decided}" in smelt("why", "m")
        listed = smelt("engines", "m")
        assert f"were {decided}" in listed
        assert f"engine {ORT.digest()[:12]} is passed over: slower" in listed
        (master,) = smelt_json("engines", "m")["masters"]
        assert master["joint_runs"] == [run.model_dump(mode="json")]

    def test_an_engine_that_could_not_be_measured_says_so(self, registry: Registry) -> None:
        unclear = world.proof(timings=world.paired(0.8, 1.5), created_at="2026-01-02T00:00:00Z")
        registry.add_proof(ORT.digest(), unclear)
        (case,) = smelt_json("why", "m")["generations"]
        assert case["serves"].endswith(
            "one would serve with the fallback: whether an engine is faster could not be measured"
        )
        (ort,) = [p for p in case["planned"] if p["kind"] == "onnxruntime"]
        assert (ort["rank"], ort["speed_bounds"]) == (None, [0.8, 1.5])
        text = smelt("why", "m")
        assert "passed over: not measurable here now: 0.80 to 1.50 x" in text
        assert not CODE_WORD.search(text), "what programs read is in the JSON alone"
        (master,) = smelt_json("engines", "m")["masters"]
        (model,) = master["models"]
        assert (list(model["not_measurable"]), model["slower_than_fallback"]) == (
            [ORT.digest()],
            {},
        )
        assert f"engine {ORT.digest()[:12]} is passed over: not measurable" in smelt("engines")
        assert "?" not in smelt("why", "m")

    def test_wild_figures_are_not_shown_as_figures(self, registry: Registry) -> None:
        wild = world.proof(timings=world.paired(0.25, 99.0), created_at="2026-01-02T00:00:00Z")
        registry.add_proof(ORT.digest(), wild)
        for text in (smelt("why", "m", "--wide"), smelt("engines", "m")):
            rows = [re.split(" {2,}", line) for line in text.splitlines()]
            (cells,) = [row for row in rows if "onnxruntime fp32" in row]
            assert cells.count("?") == 2
            assert [cell for cell in cells if " ms" in cell] == ["1000.00 ms ?"]
            assert not any(cell.endswith("x") for cell in cells)

    def test_an_unknown_generation_says_which_are_known(self, registry: Registry) -> None:
        result = CliRunner().invoke(app, ["why", "m", "--generation", "cuda-sm90"])
        assert result.exit_code != 0
        assert f"plans for {world.GENERATION}" in str(result.exception)


def test_why_tells_what_became_of_a_plan_that_could_not_be_made(registry: Registry) -> None:
    def tell(kind: EventKind, generation: str, why: str) -> None:
        event = Event(
            at="2026-01-01T00:00:00Z", kind=kind, model="m", generation=generation, why=why
        )
        assert registry.append_event(event, registry.event_end())

    missing = ["why", "m", "--generation", "cuda-sm90"]
    before = CliRunner().invoke(app, missing)
    assert "plans for cpu-x86_64-v3. A controller makes one when such a" in str(before.exception)
    tell(EventKind.QUARANTINED, "cuda-sm90", "planning failed three times: no memory")
    tell(EventKind.QUARANTINED, "cuda-sm80", "another matter")
    after = CliRunner().invoke(app, missing)
    assert "(quarantined, 2026-01-01 00:00:00Z): planning failed three" in str(after.exception)


def test_why_reads_a_part_of_the_trail_or_none(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_read = 0
    read = ObstoreArtifactStore.read

    def counted(store: ObstoreArtifactStore, key: str) -> bytes:
        nonlocal num_read
        num_read += key.startswith("events/")
        return read(store, key)

    for module in (event_log, why_cases):
        monkeypatch.setattr(module, "MOST_SEARCHED", 5)
    for number in range(9):
        other = Event(at=world.AT, kind=EventKind.BUILD_STARTED, model="n", mark=str(number))
        assert registry.append_event(other, registry.event_end())
    monkeypatch.setattr(ObstoreArtifactStore, "read", counted)
    smelt("why", "m")
    assert num_read == 0, "its recipe has no traffic that could drift"
    missing = CliRunner().invoke(app, ["why", "m", "--generation", "cuda-sm90"])
    assert num_read == 5
    unread = "The last 5 events tell no more, and older ones were not read. A controller makes"
    assert unread in str(missing.exception)


def test_an_older_version_is_explained_too(registry: Registry) -> None:
    registry.add_model_version(
        name="m", master=world.MASTER, recipe=Recipe(), source="s", source_fingerprint="1"
    )
    assert smelt_json("why", "m")["generations"] == []
    explained = smelt_json("why", "m", "--version", "1")
    assert explained["version"] == 1
    assert [each["generation"] for each in explained["generations"]] == [world.DEVICE.generation]
