"""Every generated file, by its path below the repository's root."""

from services.telemetry.boards.board import read_boards
from services.telemetry.boards.grafana import board_json
from services.telemetry.boards.rules import prometheus_rule, rule_files


def generated_files() -> dict[str, str]:
    """Text by path."""
    rules = {f"deploy/prometheus/{name}": text for name, text in rule_files().items()}
    boards = {f"deploy/grafana/{board.uid}.json": board_json(board) for board in read_boards()}
    return rules | {"deploy/prometheus/operator/rules.yml": prometheus_rule()} | boards
