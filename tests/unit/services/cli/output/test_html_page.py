"""Pages that load nothing."""

from services.cli.output.html_page import Chart


def test_a_long_label_leaves_a_chart_its_width() -> None:
    """Rendering never ended where the label left no width for the title of the axis."""
    chart = Chart("Rows/s", "batch", {"eager": [1.0, 2.0]}, ["1 x " * 25, "2"])
    assert "<svg" in chart.svg()
