"""The picture: well-formed, everything within it, no label in another's place."""

from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from compiler_worker.profiling.picture import bars, drawn, time_per_op
from tests.unit.compiler_worker.profiling.reports import small_report

SVG = "{http://www.w3.org/2000/svg}"
# Width of a character of labels in pixels, most letters' at least.
LABEL_CHAR = 7.8


def parts(picture: str, kind: str, tag: str) -> list[ET.Element]:
    """Elements within those of a class of pygal's."""
    groups = (g for g in ET.fromstring(picture).iter(f"{SVG}g") if kind == g.get("class"))
    return [each for group in groups for each in group.iter(f"{SVG}{tag}")]


def labels(picture: str) -> list[tuple[float, str]]:
    """Place from above, and text, of the rows."""
    rows = parts(picture, "axis y", "text")
    return sorted((float(each.get("y", 0)), each.text or "") for each in rows)


def test_a_report_becomes_a_picture_with_title_units_and_both_sides() -> None:
    picture = time_per_op(small_report())
    assert "a &lt;fast&gt; processor &amp; more" in picture
    assert [text for _, text in labels(picture)] == [
        "add: 1 ms",
        "gelu: 1 ms",
        "add → gelu: 1 ms",
    ]
    names = [each.text for each in parts(picture, "legends", "text")]
    assert names == [
        "Before: eager PyTorch, per op: 2 ms in all",
        "After: Inductor, per kernel: 1 ms in all",
    ]
    assert "(ms)" in picture
    assert "<script" not in picture


@pytest.mark.parametrize("num_bars", [0, 1, 14, 40])
@pytest.mark.parametrize("longest_s", [0.0, 3e-7, 0.0049, 12.5])
def test_nothing_overlaps_or_leaves_the_picture(num_bars: int, longest_s: float) -> None:
    label = "w" * 80
    timed = [(f"{i}{label}", longest_s / (i + 1)) for i in range(num_bars)] * 3
    before, after = bars(timed), bars(timed[:5])
    picture = drawn({"before": before, "after": after}, "heading\nand more")
    root = ET.fromstring(picture)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert width == 1000
    rows = labels(picture)
    wanted = [name for name, _ in (*before, *after)]
    assert [text.rpartition(": ")[0] for _, text in rows] == wanted
    assert all(below - above >= 15 for (above, _), (below, _) in pairwise(rows))
    assert all(0 <= y <= height for y, _ in rows)
    assert all(len(text) * LABEL_CHAR < width / 2 for _, text in rows)
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.get("x", 0)) + float(rect.get("width", 0)) <= width


def test_bars_are_summed_by_label_and_the_shortest_stand_together() -> None:
    assert bars([("add", 1.0), ("add", 2.0)]) == [("add x2", 3000.0)]
    found = bars((str(i), float(i)) for i in range(20))
    assert [label for label, _ in found[:2]] == ["19", "18"]
    assert found[-1] == ("7 others x7", 21000.0)
    assert bars([("seen", 1.0), ("unseen", None)])[1] == ("unseen", 0.0)
