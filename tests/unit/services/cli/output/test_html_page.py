"""Pages that load nothing."""

import sys

from services.cli.output.html_page import Chart


def test_a_long_label_leaves_a_chart_its_width() -> None:
    """Rendering never ended where the label left no width for the title of the axis."""
    chart = Chart("Rows/s", "batch", {"eager": [1.0, 2.0]}, ["1 x " * 25, "2"])
    assert "<svg" in chart.svg()


def test_a_chart_leaves_no_import_hook_without_find_spec() -> None:
    """Importing pygal adds one, at which pytest's collection of later modules fails."""
    Chart("Rows/s", "batch", {"eager": [1.0, 2.0]}, ["1", "2"]).svg()
    assert [each for each in sys.meta_path if not hasattr(each, "find_spec")] == []
