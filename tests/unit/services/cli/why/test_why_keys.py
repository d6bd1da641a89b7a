"""`smelt why` on keys: two of them side by side, a miss beside what is there, what is slow."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.builds.build_key import BuildKey
from services.contracts.errors import InvalidRequestError, NotFoundError
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import SideTiming, Timing
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.selection.fallback_verdict import FallbackVerdict
from services.contracts.terms import proof_terms
from tests.unit.services.cli.why.explained import smelt, smelt_json
from tests.unit.services.controller import build_world as world

TERMS = proof_terms(Recipe(), world.key().precision, None)
ORT, OPENVINO = (
    world.key(kind, proof_terms=TERMS) for kind in (EngineKind.ONNXRUNTIME, EngineKind.OPENVINO)
)
OLD_OPENVINO = OPENVINO.model_copy(update={"toolchain": {"openvino": "2020.1"}})


def timing(fallback_s: float) -> Timing:
    fallback = SideTiming(p50_s=fallback_s, p95_s=fallback_s, throughput=1.0, peak_memory_bytes=1)
    return Timing(
        bucket="b",
        sizes={},
        p50_s=0.002,
        p95_s=1,
        throughput=1,
        eager_p50_s=0.004,
        fallback=fallback,
    )


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """ORT and OPENVINO are planned; ORT is published, and an OpenVINO engine of before."""
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    made = world.registry_with_model(tmp_path)
    made.write_plan(world.plan((ORT, OPENVINO)))
    slow = world.proof(timings=(timing(fallback_s=0.001),))
    made.publish_engine(world.manifest(ORT), {}, slow)
    made.publish_engine(world.manifest(OLD_OPENVINO), {}, world.proof())
    return made


def test_two_keys_are_told_apart_fact_by_fact(registry: Registry) -> None:
    one, other = OPENVINO.digest(), OLD_OPENVINO.digest()
    found = smelt_json("why", "--keys", one[:10], other[:10])
    assert (found["one"], found["other"]) == (one, other)
    facts = {each["field"]: (each["one"], each["other"]) for each in found["differences"]}
    names = {*OPENVINO.toolchain, "openvino"}
    assert facts == {
        f"toolchain.{name}": (
            OPENVINO.toolchain.get(name, "-"),
            "2020.1" if name == "openvino" else "-",
        )
        for name in names
    }
    reason = BuildKey.model_fields["toolchain"].description
    assert {each["reason"] for each in found["differences"]} == {reason}
    text = smelt("why", "--keys", ORT.digest(), one)
    assert "kind" in text
    assert str(BuildKey.model_fields["kind"].description) in " ".join(text.split())


def test_digests_are_short_for_people_and_whole_for_programs(registry: Registry) -> None:
    other = ORT.model_copy(update={"master_digest": "b" * 64})
    registry.publish_engine(world.manifest(other), {}, world.proof())
    words = ("why", "--keys", ORT.digest(), other.digest())
    assert "b" * 64 in {each["other"] for each in smelt_json(*words)["differences"]}
    text = smelt(*words)
    assert "b" * 12 in text
    assert "b" * 13 not in text


def test_one_key_is_no_other_than_itself(registry: Registry) -> None:
    digest = ORT.digest()
    assert "are one key" in smelt("why", "--keys", digest, digest[:20])


@pytest.mark.parametrize(
    ("words", "error", "told"),
    [
        (("--keys", "zz", "zz"), NotFoundError, "key 'zz' not found among"),
        (("--keys", f"0{ORT.digest()[:9]}", "z"), NotFoundError, "did you mean '"),
        (("--keys", "", ""), InvalidRequestError, "ambiguous, give more digits"),
        ((), InvalidRequestError, "name a MODEL, or two keys"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    registry: Registry, words: tuple[str, ...], error: type[Exception], told: str
) -> None:
    result = CliRunner().invoke(app, ["why", *words])
    assert isinstance(result.exception, error)
    assert told in str(result.exception)


def test_a_miss_names_what_is_nearest_and_how_it_differs(registry: Registry) -> None:
    (case,) = smelt_json("why", "m")["generations"]
    nearest = {planned["kind"]: planned["nearest"] for planned in case["planned"]}
    assert nearest["onnxruntime"] is None
    assert nearest["openvino"]["digest"] == OLD_OPENVINO.digest()
    fields = {each["field"] for each in nearest["openvino"]["differences"]}
    assert "toolchain.openvino" in fields
    assert all(field.startswith("toolchain.") for field in fields)
    text = smelt("why", "m")
    line = f"openvino fp32 {OPENVINO.digest()[:12]}: nearest is {OLD_OPENVINO.digest()[:12]}: "
    [told] = [each for each in text.splitlines() if each.startswith(line)]
    assert "toolchain.openvino: 2020.1 found / - wanted" in told
    assert "kind" not in told


def test_of_a_kind_that_was_never_published_nothing_is_nearest(registry: Registry) -> None:
    inductor = world.key(EngineKind.INDUCTOR)
    registry.write_plan(world.plan((ORT, OPENVINO, inductor)))
    (case,) = smelt_json("why", "m")["generations"]
    (miss,) = [planned for planned in case["planned"] if planned["kind"] == "inductor"]
    assert miss["nearest"] is None
    assert f"inductor fp32 {inductor.digest()[:12]}: nearest" not in smelt("why", "m")


def test_a_proven_engine_that_is_passed_over_says_why(registry: Registry) -> None:
    (case,) = smelt_json("why", "m")["generations"]
    (ort,) = [planned for planned in case["planned"] if planned["kind"] == "onnxruntime"]
    assert (ort["key_state"], ort["rank"], ort["speed_over_fallback"]) == ("proven", None, 0.5)
    assert ort["reason"].startswith("passed over: slower than the fallback")
    assert case["serves"].endswith("one would serve with the fallback: no engine is faster")
    assert "passed over: slower than the fallback" in smelt("why", "m")
    listed = smelt("engines", "m")
    assert "0.50x" in listed
    assert f"engine {ORT.digest()[:12]} is passed over: slower than the fallback" in listed
    (master,) = smelt_json("engines", "m")["masters"]
    assert list(master["models"][0]["slower_than_fallback"]) == [ORT.digest()]


def test_a_generation_that_nothing_is_planned_for_has_the_nearest_that_something_is(
    registry: Registry,
) -> None:
    with pytest.raises(NotFoundError, match=f"did you mean '{world.GENERATION}'"):
        smelt("why", "m", "--generation", "cpu-x86_64-v2")


def test_eager_is_said_to_be_that_of_onnx_runtime_where_torch_cannot_compute(
    registry: Registry,
) -> None:
    assert "x eager: over ONNX Runtime" not in smelt("why", "m")
    registry.add_model_version(
        name="m",
        master=world.MASTER,
        recipe=Recipe(),
        source="s",
        source_fingerprint="1",
        fallback_verdict=FallbackVerdict(refused="TreeEnsemble"),
    )
    registry.write_plan(world.plan((ORT,), version=2))
    assert "x eager: over ONNX Runtime without its optimisations" in smelt("why", "m")


@pytest.mark.parametrize(
    ("timings", "is_said"), [((), True), (world.paired(0.6, 0.7), False)], ids=["none", "timed"]
)
def test_why_the_fallback_was_not_timed_is_said_once(
    registry: Registry, timings: tuple[Timing, ...], is_said: bool
) -> None:
    proof = world.proof(timings=timings, fallback="not timed: torch.export failed")
    registry.add_proof(ORT.digest(), proof)
    assert smelt("why", "m").count("x fallback: not timed: torch.export failed") == int(is_said)
