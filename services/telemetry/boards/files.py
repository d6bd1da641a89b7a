"""Every generated file, by its path below the repository's root."""

from services.telemetry.boards.builds_board import BUILDS_BOARD
from services.telemetry.boards.engines_board import ENGINES_BOARD
from services.telemetry.boards.grafana import board_json
from services.telemetry.boards.requests_board import REQUESTS_BOARD
from services.telemetry.boards.rules import prometheus_rule, rule_files

BOARDS = (REQUESTS_BOARD, ENGINES_BOARD, BUILDS_BOARD)


def generated_files() -> dict[str, str]:
    """Text by path."""
    rules = {f"deploy/prometheus/{name}": text for name, text in rule_files().items()}
    boards = {f"deploy/grafana/{board.uid}.json": board_json(board) for board in BOARDS}
    return rules | {"deploy/prometheus/operator/rules.yml": prometheus_rule()} | boards
