"""Charts of pygal as SVG text that loads nothing and runs no script."""

import re
import sys
from typing import Any

_STYLE = {
    "font_family": "system-ui, sans-serif",
    "label_font_size": 13,
    "major_label_font_size": 13,
    "legend_font_size": 15,
}


def svg_chart(kind: str, **options: Any) -> Any:
    """An empty chart.

    Args:
        kind: name of pygal's class.
        options: of pygal.
    """
    import pygal
    from pygal.style import CleanStyle

    # Its import hook, for maps, has no find_spec, which Python 3.12 and pytest ask for.
    hooks = [each for each in sys.meta_path if not isinstance(each, pygal.PluginImportFixer)]
    sys.meta_path[:] = hooks
    return getattr(pygal, kind)(
        # By default it loads a script for tooltips.
        js=(),
        legend_at_bottom=True,
        legend_at_bottom_columns=1,
        truncate_legend=-1,
        style=CleanStyle(**_STYLE),
        **options,
    )


def svg_text(chart: Any) -> str:
    """The chart as an `<svg>` element."""
    svg = chart.render(is_unicode=True, disable_xml_declaration=True)
    # Its settings, of which names are a part; they have no `<` of their own.
    return re.sub("<script.*?</script>", "", svg, flags=re.DOTALL)
