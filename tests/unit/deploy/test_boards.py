"""Boards and rules as committed: up to date, complete, and of metrics that exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.contracts.selection.selection import GATED
from services.telemetry.boards.files import generated_files
from services.telemetry.boards.rules import read_rules
from services.telemetry.catalog import ALL_METRICS
from services.telemetry.metric import MetricKind

ROOT = Path(__file__).parents[3]
BOARDS = {
    path.stem: json.loads(path.read_text())
    for path in sorted(ROOT.joinpath("deploy/grafana").glob("*.json"))
}
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']} {panel['id']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]
EXPORTED = {
    spelled + suffix
    for metric in ALL_METRICS
    for spelled in (metric.name, metric.ray_name, f"(ray_)?{metric.name}")
    for suffix in (("_bucket", "_sum", "_count") if metric.kind is MetricKind.HISTOGRAM else ("",))
}
RECORDED = {rule["record"] for rule in read_rules() if "record" in rule}
NAMES = re.compile(r"(?:\w+:)?(?:\(ray_\)\?|ray_)?smelt_\w+(?::\w+)?")


@pytest.mark.parametrize("name", generated_files())
def test_what_is_committed_is_what_the_catalogue_generates(name: str) -> None:
    fresh = generated_files()[name]
    assert (ROOT / name).read_text() == fresh, f"{name} is stale: run .ci/generate"


def test_nothing_else_is_committed_beside_it() -> None:
    folders = (ROOT / "deploy/grafana", ROOT / "deploy/prometheus")
    found = {str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("*.json")}
    assert found <= set(generated_files())


def test_every_metric_is_shown_or_watched() -> None:
    """Recorded for nobody, it would cost for nothing; the boards are where people look."""
    readers = "".join(generated_files().values())
    spelled = {metric: (metric.name, metric.ray_name) for metric in ALL_METRICS}
    assert [m.name for m, names in spelled.items() if not any(n in readers for n in names)] == []


def test_one_fallback_that_is_as_fast_as_an_engine_lacks_none() -> None:
    """Boards and alerts leave out the reasons for which `select` prefers the fallback."""
    left_out = set(re.findall(r'reason!~\\?"([^"\\]*)', "".join(generated_files().values())))
    assert left_out == {"|".join(GATED)}


def test_kubernetes_gets_every_board() -> None:
    kustomization = yaml.safe_load(ROOT.joinpath("deploy/grafana/kustomization.yaml").read_text())
    (generator,) = kustomization["configMapGenerator"]
    assert generator["files"] == [f"{name}.json" for name in BOARDS]


def test_the_three_boards() -> None:
    assert {board["uid"]: board["title"] for board in BOARDS.values()} == {
        "smelt-requests": "Smelt: requests",
        "smelt-engines": "Smelt: engines and fallbacks",
        "smelt-builds": "Smelt: builds and proofs",
    }


@pytest.mark.parametrize("name", BOARDS)
class TestEveryBoard:
    def test_has_the_variables(self, name: str) -> None:
        variables = [variable["name"] for variable in BOARDS[name]["templating"]["list"]]
        assert variables == ["datasource", "namespace", "model", "version", "generation"]

    def test_filters_by_each_variable_but_the_data_source(self, name: str) -> None:
        text = json.dumps(BOARDS[name]["panels"])
        for variable in ("namespace", "model", "version", "generation"):
            assert f'=~\\"${variable}\\"' in text

    def test_ids_are_unique_and_panels_do_not_overlap(self, name: str) -> None:
        panels = BOARDS[name]["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        cells = [cell for panel in panels for cell in cells_of(panel["gridPos"])]
        assert len(set(cells)) == len(cells)
        assert max(column for column, _ in cells) < 24


@pytest.mark.parametrize("panel", PANELS)
class TestEveryPanel:
    def test_has_a_unit_a_description_and_the_chosen_data_source(
        self, panel: dict[str, Any]
    ) -> None:
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["description"].endswith(".")
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert {source["uid"] for source in sources} == {"${datasource}"}

    def test_asks_for_series_that_exist(self, panel: dict[str, Any]) -> None:
        for target in panel["targets"]:
            named = set(NAMES.findall(target["expr"]))
            assert named
            assert named <= EXPORTED | RECORDED

    def test_names_several_series_by_their_labels(self, panel: dict[str, Any]) -> None:
        if panel["type"] != "timeseries":
            return
        for target in panel["targets"]:
            assert target["legendFormat"]


def cells_of(place: dict[str, int]) -> list[tuple[int, int]]:
    return [
        (column, line)
        for column in range(place["x"], place["x"] + place["w"])
        for line in range(place["y"], place["y"] + place["h"])
    ]
