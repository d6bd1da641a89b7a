"""The picture: well-formed, everything within it, no label in another's place."""

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from compiler_worker.profiling.picture import Bar, bars, drawn, time_per_op
from tests.unit.compiler_worker.profiling.reports import small_report

SVG = "{http://www.w3.org/2000/svg}"
# Width of a character of each class in pixels: exact for the labels, which have one for all.
LABEL_CHAR, VALUE_CHAR = 7.3, 7.5


def texts(picture: str, kind: str) -> list[tuple[float, float, str]]:
    root = ET.fromstring(picture)
    found = [each for each in root.iter(f"{SVG}text") if each.get("class") == kind]
    return [(float(t.get("x", 0)), float(t.get("y", 0)), t.text or "") for t in found]


def test_a_report_becomes_a_picture_with_title_units_and_both_sides() -> None:
    picture = time_per_op(small_report())
    assert "a &lt;fast&gt; processor &amp; more" in picture
    assert [text for _, _, text in texts(picture, "l")] == ["add", "gelu", "add → gelu"]
    assert len(texts(picture, "h")) == 2
    assert texts(picture, "a")[-1][2].endswith("(ms)")


@pytest.mark.parametrize("num_bars", [0, 1, 14, 40])
@pytest.mark.parametrize("longest_s", [0.0, 3e-7, 0.0049, 12.5])
def test_nothing_overlaps_or_leaves_the_picture(num_bars: int, longest_s: float) -> None:
    label = "w" * 80
    timed = [(f"{label}{i}", longest_s / (i + 1)) for i in range(num_bars)] * 3
    picture = drawn({"before": bars(timed), "after": bars(timed[:5])}, title="t", subtitle="s")
    root = ET.fromstring(picture)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert width == 1000
    rows = sorted(y for _, y, _ in texts(picture, "l"))
    assert all(below - above >= 20 for above, below in pairwise(rows))
    assert all(0 <= y <= height for _, y, _ in texts(picture, "a"))
    for x, _, text in texts(picture, "l"):
        assert x - len(text) * LABEL_CHAR >= 0
    for x, _, text in texts(picture, "v"):
        assert x + len(text) * VALUE_CHAR <= width
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.get("x", 0)) + float(rect.get("width", 0)) <= width
    ticks = sorted(x for x, _, text in texts(picture, "a") if re.fullmatch(r"[\d.e+-]+", text))
    assert all(right - left > 60 for left, right in pairwise(ticks))


def test_bars_are_summed_by_label_and_the_shortest_stand_together() -> None:
    (bar,) = bars([("add", 1.0), ("add", 2.0)])
    assert bar == Bar(label="add", num_calls=2, time_s=3.0)
    found = bars((str(i), float(i)) for i in range(20))
    assert [bar.label for bar in found[:2]] == ["19", "18"]
    assert found[-1] == Bar(label="7 others", num_calls=7, time_s=21.0)
    assert bars([("seen", 1.0), ("unseen", None)])[1].time_s == 0.0
