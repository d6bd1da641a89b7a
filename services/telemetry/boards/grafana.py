"""Boards as the JSON that Grafana 10 and newer import.

The only module here that needs the Grafana Foundation SDK; what it writes is committed.
"""

import json
from string import ascii_uppercase
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from services.telemetry.boards.board import VARIABLES, Board, Look, Panel
from services.telemetry.boards.selectors import NAMESPACE, filtered

DATASOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
_TAG = "smelt"
_HEIGHT = {Look.NUMBERS: 4, Look.LINES: 8, Look.TABLE: 8}
# Where a variable's values are found: the series that have the label soonest and for longest.
_SOURCES = {
    NAMESPACE: '{__name__=~"smelt_controller_connected|smelt_replicas_wanted"}',
    "model": "smelt_replicas_wanted",
    "version": "smelt_replicas_wanted",
    "generation": '{__name__=~"smelt_replicas_attached|smelt_engines|smelt_build_state"}',
}
_AnyPanel = timeseries.Panel | stat.Panel | table.Panel


def board_json(board: Board) -> str:
    """The text of one board's file."""
    model = _board(board).build()
    numbered = (panel for panel in model.panels or [])
    # Grafana identifies the panels of a board by number.
    for number, panel in enumerate(numbered, start=1):
        panel.id_val = number
    return json.dumps(model, cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _board(board: Board) -> dashboard.Dashboard:
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([_TAG])
        .timezone("browser")
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(_link_to_others())
        .with_variable(_datasource_variable())
    )
    for position, label in enumerate(VARIABLES):
        made.with_variable(_label_variable(label, VARIABLES[:position]))
    for row in board.rows:
        made.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            made.with_panel(_panel(panel))
    return made


def _link_to_others() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("Smelt")
        .type(DashboardLinkType.DASHBOARDS)
        .tags([_TAG])
        .include_vars(include_vars=True)
        .keep_time(keep_time=True)
    )


def _datasource_variable() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _label_variable(label: str, narrowed_by: tuple[str, ...]) -> dashboard.QueryVariable:
    series = filtered(_SOURCES[label], narrowed_by)
    return (
        dashboard.QueryVariable(label)
        .label(label.capitalize())
        .datasource(DATASOURCE)
        .query(f"label_values({series}, {label})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(multi=True)
        .include_all(include_all=True)
        # Also series without the label: outside Kubernetes there may be no namespace.
        .all_value(".*")
        .current(VariableOption(text="All", value="$__all", selected=True))
    )


def _panel(panel: Panel) -> _AnyPanel:
    made = _look(panel)
    made.title(panel.title).description(panel.description).datasource(DATASOURCE)
    made.unit(panel.unit.value).span(panel.width).height(_HEIGHT[panel.look])
    for query, ref_id in zip(panel.queries, ascii_uppercase, strict=False):
        target = prometheus.Dataquery().expr(query.filtered).ref_id(ref_id).datasource(DATASOURCE)
        if query.legend:
            target.legend_format(query.legend)
        if query.has_exemplars:
            target.exemplar(exemplar=True)
        if panel.look is Look.LINES:
            target.range()
        else:
            target.instant()
        if panel.look is Look.TABLE:
            target.format(PromQueryFormat.TABLE)
        made.with_target(target)
    return made


def _look(panel: Panel) -> _AnyPanel:
    match panel.look:
        case Look.LINES:
            return _lines(panel)
        case Look.NUMBERS:
            newest = common.ReduceDataOptions().calcs(["lastNotNull"])
            number = stat.Panel().color_mode(BigValueColorMode.VALUE).reduce_options(newest)
            return number.thresholds(_thresholds(panel))
        case Look.TABLE:
            shown = {"excludeByName": {"Time": True}, "renameByName": {"Value": "count"}}
            organized = DataTransformerConfig(id_val="organize", options=shown)
            return table.Panel().with_transformation(organized)


def _lines(panel: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST)
    made = (
        timeseries.Panel()
        .min(0)
        .fill_opacity(8)
        .legend(legend.placement(LegendPlacement.BOTTOM).show_legend(show_legend=True))
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    if panel.limit is not None:
        line = common.GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.DASHED)
        made.thresholds(_thresholds(panel)).thresholds_style(line)
    return made


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value=None, color="green")]
    if panel.limit is not None:
        steps.append(Threshold(value=panel.limit, color="red"))
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
