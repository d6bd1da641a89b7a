"""`smelt plan`: from engines of a store and a profile to devices, prices and what engines save."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.cli.planning.curves import Curve, MeasuredSide
from services.cli.planning.plan import sizing_document
from services.cli.planning.plan_profile import PlanProfile
from services.cli.planning.plan_text import plan_text
from services.cli.planning.replica_memory import ReplicaMemory
from services.contracts.errors import InvalidRequestError
from services.contracts.model.recipe import Bucket, DimRange
from services.contracts.text.text_table import Table
from tests.unit.services.cli.planning.planned_model import planned_model

BUCKET = Bucket(
    dims={"batch": DimRange(min=1, opt=8, max=8), "length": DimRange(min=1, opt=8, max=8)}
)
GPU = "cuda-sm89"
MEMORY = ReplicaMemory(share=0.3, needed_gib=5.8, memory_gib=24)
PROFILE = """\
models:
  m:
    requests_per_s: 1000
    p99_ms: 60
devices:
  cuda-sm89: {price_per_h: 2, per_node: 1}
nodes_lost: 0
max_load: 1
"""


@pytest.fixture
def profile(tmp_path: Path) -> Callable[..., PlanProfile]:
    def read(*changes: tuple[str, str]) -> PlanProfile:
        text = PROFILE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "profile.yaml"
        path.write_text(text)
        return PlanProfile.from_file(path)

    return read


def line(name: str, factor: float) -> Curve:
    found = Curve.through(name, [(8, 0.010 * factor), (64, 0.024 * factor)])
    assert found is not None
    return found


def document(profile: PlanProfile, *sides: MeasuredSide) -> dict[str, Any]:
    factors = {MeasuredSide.ENGINE: 1 / 1.74, MeasuredSide.FALLBACK: 0.9, MeasuredSide.EAGER: 1.0}
    curves = {side: line(side, factors[side]) for side in sides or MeasuredSide}
    pair = ("m", GPU)
    return sizing_document(profile, {"m": planned_model(BUCKET)}, {pair: curves}, {pair: MEMORY})


def test_forty_devices_become_twenty_three(profile: Callable[..., PlanProfile]) -> None:
    """40 devices at 45 % of what eager does; engines take 1/1.74 of its time: 40 / 1.74 = 23."""
    # Eager does 333 requests a second with a p99 so far away, 8 in 24 ms: 40 x 0.45 x 333 = 6000.
    changes = (("1000", "5900"), ("p99_ms: 60", "p99_ms: 2000"), ("max_load: 1", "max_load: 0.45"))
    plan = document(profile(*changes))
    assert plan["devices"][0]["num_devices"] == 23
    *_, eager = plan["without_engines"]
    assert (eager["computes"], eager["num_devices"]) == ("eager PyTorch alone", 40)
    assert eager["currency_per_day"] == 40 * 2 * 24
    assert plan["currency_per_day"] == 23 * 2 * 24
    assert plan["devices"][0]["load"] == pytest.approx(0.45, abs=0.01)


def test_the_p99_that_is_planned_is_within_the_wanted_one(
    profile: Callable[..., PlanProfile],
) -> None:
    (model,) = document(profile(("p99_ms: 60", "p99_ms: 30")), MeasuredSide.ENGINE)["models"]
    assert 0.01 < model["p99_s"] <= model["p99_wanted_s"]


def test_a_p99_that_nothing_keeps_is_answered_with_the_smallest_that_is_kept(
    profile: Callable[..., PlanProfile],
) -> None:
    with pytest.raises(InvalidRequestError, match=r"models\.m\.p99_ms: got 5, and") as refused:
        document(profile(("p99_ms: 60", "p99_ms: 5"), ("1000", "0.001")))
    found = re.search(rf"the smallest that can be kept is ([\d.]+), on {GPU}", str(refused.value))
    assert found, refused.value
    least_ms = float(found[1])

    def asked(p99_ms: float) -> dict[str, Any]:
        changes = (("p99_ms: 60", f"p99_ms: {p99_ms:.2f}"), ("1000", "0.001"))
        return document(profile(*changes))

    plan = asked(least_ms)
    assert plan["models"][0]["p99_wanted_s"] == pytest.approx(least_ms / 1000)
    # The fallback's calls take longer than that.
    assert "the smallest that can be kept" in plan["without_engines"][0]["reason"]
    with pytest.raises(InvalidRequestError, match="p99_ms: got"):
        asked(least_ms - 0.02)


def test_what_if_is_in_the_title_of_the_table(profile: Callable[..., PlanProfile]) -> None:
    changes = ["traffic=2", "nodes_lost=0"]
    asked, _ = profile().changed(changes)
    table = next(plan_text(document(asked) | {"what_if": changes}))
    assert isinstance(table, Table)
    assert table.title.endswith(", if traffic=2 and nodes_lost=0")


def test_a_model_that_was_timed_on_a_busy_machine_is_marked(
    profile: Callable[..., PlanProfile],
) -> None:
    pair = ("m", GPU)
    curves = {MeasuredSide.ENGINE: replace(line("engine", 0.5), is_wild=True)}
    plan = sizing_document(profile(), {"m": planned_model(BUCKET)}, {pair: curves}, {pair: MEMORY})
    _, models, *lines = plan_text(plan | {"what_if": []})
    assert isinstance(models, Table)
    assert models.rows[0][2] == "engine ?"
    assert any(str(each).startswith("?: timed while its machine was busy") for each in lines)


def test_a_profile_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        PlanProfile.from_file(tmp_path / "gone.yaml")
    assert str(refused.value) == (
        f"profile {tmp_path}/gone.yaml: No such file or directory; expected a YAML text file with "
        "models and devices"
    )


def test_without_an_engine_the_fallback_is_planned(profile: Callable[..., PlanProfile]) -> None:
    plan = document(profile(), MeasuredSide.FALLBACK, MeasuredSide.EAGER)
    assert plan["models"][0]["computes"] == MeasuredSide.FALLBACK
    assert plan["without_engines"][0]["num_devices"] == plan["devices"][0]["num_devices"]


def test_hours_that_differ_cost_less_by_the_hour(profile: Callable[..., PlanProfile]) -> None:
    rates = ", ".join(["4000", *["1000"] * 23])
    plan = document(profile(("1000", f"[{rates}]")))
    assert plan["currency_per_day_by_hour"] < plan["currency_per_day"]
    assert len(plan["by_hour"]) == 24
    tables = [e for e in plan_text(plan | {"what_if": []}) if isinstance(e, Table)]
    (hours,) = (each for each in tables if each.columns[0] == "hour")
    assert [len(hours.rows), hours.rows[0][0], hours.rows[-1][0]] == [24, "0", "23"]


def test_what_if(profile: Callable[..., PlanProfile]) -> None:
    changed, precision = profile().changed(["traffic=2", "precision=fp32", "nodes_lost=1"])
    assert changed.models["m"].rates[0] == 2000
    assert (precision, changed.nodes_lost) == ("fp32", 1)
    for wrong in (
        "traffic=0",
        "traffic=1e308",
        "generation=cuda-sm90",
        "precision=fp31",
        "nodes_lost=-1",
        "nodes_lost=1" + "0" * 400,
        "weather=1",
    ):
        with pytest.raises(InvalidRequestError, match=f"--what-if {wrong}: expected traffic=TIMES"):
            profile().changed([wrong])
    # The title would name both, and the plan be of the last.
    with pytest.raises(InvalidRequestError, match="--what-if precision=int8: .*; each once"):
        profile().changed(["precision=fp32", "precision=int8"])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("p99_ms: 60", "p99_ms: 0.5", "models.m: .*p99_ms: expected more than overhead_ms, 1$"),
        ("1000", "fast", "profile.yaml:3: models.m.requests_per_s: got 'fast': expected a number$"),
        ("1000", "[1, 2]", "profile.yaml:2: models.m: .*a number above 0, or 24 numbers"),
        ("price_per_h", "price", "profile.yaml:6: devices.cuda-sm89.price: no such key"),
        ("cuda-sm89", "h100", "h100"),
    ],
    ids=["overhead", "rate", "hours", "key", "generation"],
)
def test_a_wrong_profile_is_told_by_line(
    profile: Callable[..., PlanProfile], old: str, new: str, words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        profile((old, new))


def test_models_that_share_a_device_are_shown_with_their_replicas(
    profile: Callable[..., PlanProfile],
) -> None:
    changes = (("1000", "50"), ("models:\n", "models:\n  n: {requests_per_s: 20, p99_ms: 60}\n"))
    asked = profile(*changes)
    curves = {MeasuredSide.ENGINE: line("engine", 0.5)}
    names = ("m", "n")
    plan = sizing_document(
        asked,
        dict.fromkeys(names, planned_model(BUCKET)),
        {(name, GPU): curves for name in names},
        {(name, GPU): MEMORY for name in names},
    )
    assert (plan["devices"][0]["num_devices"], plan["devices"][0]["num_shared"]) == (1, 1)
    assert plan["devices"][0]["memory"] == pytest.approx(0.6)
    (shared,) = plan["shared"]
    assert [(each["model"], each["replicas"]) for each in shared["models"]] == [("m", 1), ("n", 1)]
    assert [each["replicas"] for each in plan["by_hour"][0]["devices"]] == [1, 1]
    tables = [each for each in plan_text(plan | {"what_if": []}) if isinstance(each, Table)]
    assert [table.title for table in tables][1:] == ["Models", "Shared devices"]
    assert re.fullmatch(r"m 0\.\d\d \(1\), n 0\.\d\d \(1\)", tables[2].rows[0][-1])
