"""`smelt status`: where the fleet is and where it can be looked at."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from typer.testing import CliRunner

from services.cli.fleet.control_client import fleet_on_store
from services.cli.fleet.fleet_file import RunningFleet
from services.cli.fleet.gateway_workers import gateway_workers
from services.cli.fleet.status import fallback_lines, status_document, where_lines
from services.cli.main import app
from services.cli.requests.infer import known_models
from services.cli.settings import CliSettings
from services.contracts.errors import NotFoundError, NotReadyError
from services.pb import fleet_v1_pb2 as fleet
from services.telemetry import catalog
from services.telemetry.prometheus_recorder import PrometheusRecorder
from tests.unit.services.cli.fleet_stub import fleet_saying, replica
from tests.unit.services.controller import build_world as world

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


@pytest.mark.parametrize(
    ("serving", "restarts", "words"),
    [
        (4, 0, "4 gateway workers"),
        (3, 2, "3 of 4 gateway workers serve, 2 restarts"),
        (4, 1, "4 gateway workers, 1 restart"),
    ],
)
def test_how_gateway_workers_fare_is_read_off_its_metrics(
    serving: int, restarts: int, words: str
) -> None:
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(catalog.GATEWAY_WORKERS_METRICS, registry)
    recorder.set(catalog.WORKERS_SERVING, serving)
    recorder.count(catalog.WORKER_RESTARTS, restarts)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    address = f"127.0.0.1:{server.server_port}"
    running = BARE.model_copy(update={"num_gateway_workers": 4, "metrics_address": address})
    found = gateway_workers(running)
    server.shutdown()
    server.server_close()
    thread.join()
    assert found == {"wanted": 4, "serving": serving, "restarts": restarts}
    assert where_lines(running, found)[0].startswith(f"gRPC 127.0.0.1:8001 ({words})   metrics")
    # One that does not say is counted all the same.
    assert gateway_workers(running) is None
    assert "(4 gateway workers)" in where_lines(running, None)[0]


def test_a_gateway_of_one_process_is_not_asked_for_workers() -> None:
    assert gateway_workers(BARE) is None


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


def test_of_one_model_only_that_and_the_command_that_explains_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    models = [fleet.ServedModel(name=name, version=1, state="READY") for name in ("m", "second")]
    snapshot = fleet.FleetSnapshot(
        models=models, replicas=[replica(1)], store_url=str(tmp_path / "store")
    )
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    with fleet_saying(snapshot) as address:
        monkeypatch.setenv("SMELT_CONTROLLER", address)
        told = [
            CliRunner().invoke(app, ["status", *name], catch_exceptions=False).output
            for name in ([], ["m"], ["second"])
        ]
        with pytest.raises(
            NotFoundError, match="did you mean 'second'.; it has m, second; .*models list"
        ):
            CliRunner().invoke(app, ["status", "secnd"], catch_exceptions=False)
    assert [("second" in text, "m v1" in text) for text in told] == [
        (True, True),
        (False, True),
        (True, False),
    ]
    ends = ("smelt why MODEL", "smelt why m", "smelt why second")
    for text, end in zip(told, ends, strict=True):
        assert text.rstrip().endswith(f"and why nothing better does: {end}")


def test_of_a_controller_that_cannot_read_its_store_the_replicas_and_the_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    snapshot = fleet.FleetSnapshot(
        replicas=[replica(1)], store_url=str(tmp_path / "store"), fault="bucket is away"
    )
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    with fleet_saying(snapshot) as address:
        monkeypatch.setenv("SMELT_CONTROLLER", address)
        for name, is_shown in (((), True), (("m",), True), (("second",), False)):
            done = CliRunner().invoke(app, ["status", *name], catch_exceptions=False)
            assert ("bucket is away" in done.output, "m v1" in done.output) == (True, is_shown)
        # What they would say of a fleet without models is not known.
        with pytest.raises(NotReadyError, match="lists no models: bucket is away"):
            fleet_on_store(CliSettings())
        running = BARE.model_copy(update={"controller": address})
        assert known_models(CliSettings(), running, "second") == ""


def test_what_serves_while_the_fallback_is_compiled() -> None:
    interim = replica(1, fallback_name="ONNX Runtime", is_fallback_interim=True)
    snapshot = fleet.FleetSnapshot(replicas=[interim])
    document = status_document({}, snapshot)
    where = f"m version 1 on {world.GENERATION}: "
    assert document["replicas"][0]["fallback"] == "ONNX Runtime"
    assert where + "ONNX Runtime serves while torch compiles the fallback" in fallback_lines(
        document["replicas"]
    )


def test_which_fallback_serves_and_why_it_is_not_torchs() -> None:
    wrong = "ONNX Runtime serves in place of torch.compile: output 'y' is far off"
    refuted = replica(2, fallback_name="ONNX Runtime", fallback_refuted=wrong)
    older = replica(1, fallback_name="", engine_kind="fallback")
    replicas = [replica(1), refuted, refuted, older, replica(3, "e" * 64)]
    document = status_document({}, fleet.FleetSnapshot(replicas=replicas))
    names = [each["fallback"] for each in document["replicas"]]
    assert names == ["torch.compile", "ONNX Runtime", "ONNX Runtime", "fallback", ""]
    no_engine = "no proven engine of this model is published"
    where = [f"m version {number} on {world.GENERATION}" for number in (1, 2, 2)]
    assert fallback_lines(document["replicas"]) == [
        f"{subject}: {words}"
        for subject, words in zip(where, (no_engine, no_engine, wrong), strict=True)
    ]
