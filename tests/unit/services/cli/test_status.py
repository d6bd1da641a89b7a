"""`smelt status`: where the fleet is and where it can be looked at."""

from services.cli.fleet_file import RunningFleet
from services.cli.status import where_lines

BARE = RunningFleet(
    supervisor_pid=1,
    controller="127.0.0.1:1",
    grpc_address="127.0.0.1:8001",
    metrics_address="127.0.0.1:8002",
    store_url="/store",
)
PROMETHEUS = {"prometheus_url": "http://127.0.0.1:9090"}


def test_without_observers_one_line_says_where() -> None:
    assert where_lines(BARE) == ["gRPC 127.0.0.1:8001   metrics 127.0.0.1:8002   store /store"]


def test_observers_are_named_with_their_urls() -> None:
    observed = BARE.model_copy(update=PROMETHEUS | {"grafana_url": "http://127.0.0.1:3000"})
    assert where_lines(observed)[1:] == [
        "Prometheus http://127.0.0.1:9090   Grafana http://127.0.0.1:3000"
    ]


def test_without_grafana_it_says_how_to_see_the_boards() -> None:
    observed = BARE.model_copy(update=PROMETHEUS | {"boards_hint": "Grafana is not installed"})
    assert where_lines(observed)[1:] == [
        "Prometheus http://127.0.0.1:9090",
        "Grafana is not installed",
    ]
