"""Ray exports what a replica records under the names that the catalogue owns."""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore::pydantic.PydanticDeprecatedSince20",
        "ignore::ResourceWarning",
        "ignore::DeprecationWarning",
        "ignore::FutureWarning",
    ),
    pytest.mark.slow,
]
ROOT = Path(__file__).resolve().parents[3]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture
def metrics_port() -> Iterator[int]:
    """A Ray of our own whose agent exports metrics."""
    import ray

    port = free_port()
    ray.init(
        address="local",  # not the one that something else on this machine runs
        num_cpus=1,
        include_dashboard=False,
        configure_logging=False,
        _metrics_export_port=port,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    yield port
    ray.shutdown()


def test_names_and_labels_arrive(metrics_port: int) -> None:
    import ray

    @ray.remote
    class Recording:
        def record(self) -> None:
            from services.telemetry import catalog
            from services.telemetry.ray_recorder import RayRecorder

            recorder = RayRecorder(catalog.REPLICA_METRICS)
            versioned = {"model": "m", "version": "1"}
            recorder.count(catalog.FALLBACKS, **versioned, generation="g", reason="no_engine")
            recorder.observe(catalog.BATCH_SIZE, 3.0, **versioned)
            labels = dict.fromkeys(catalog.ENGINE_IN_USE.labels, "x")
            recorder.observer(catalog.BATCH_SIZE, **versioned)(40.0)
            recorder.publish()
            recorder.set(catalog.ENGINE_IN_USE, 1.0, **labels)

    actor = Recording.remote()
    ray.get(actor.record.remote())
    values = exported(metrics_port, "ray_smelt_engine_in_use", deadline_s=120)
    assert value_of(values, "ray_smelt_fallbacks_total", 'reason="no_engine"') == 1.0
    assert value_of(values, "ray_smelt_engine_in_use", 'kind="x"') == 1.0
    assert value_of(values, "ray_smelt_batch_size_bucket", 'le="2.0"') == 0.0
    assert value_of(values, "ray_smelt_batch_size_bucket", 'le="4.0"') == 1.0
    assert value_of(values, "ray_smelt_batch_size_bucket", 'le="+Inf"') == 2.0
    assert value_of(values, "ray_smelt_batch_size_count", 'model="m"') == 2.0
    # Ray's own histogram would make it up.
    assert value_of(values, "ray_smelt_batch_size_sum", 'model="m"') == 43.0


def exported(port: int, awaited: str, deadline_s: float) -> list[str]:
    """Lines of the agent's page once a metric is on it; the agent reports every few seconds."""
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        lines: list[str] = []
        # Ray starts before its agent listens.
        with suppress(URLError), urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            lines = reply.read().decode().splitlines()
        if any(line.startswith(awaited) for line in lines):
            return [line for line in lines if line.startswith("ray_smelt_")]
        time.sleep(0.2)  # the page changes when the agent's timer says so; it tells nobody
    pytest.fail(f"{awaited} was not exported within {deadline_s:g} s")


def value_of(lines: list[str], name: str, label: str) -> float:
    (line,) = [line for line in lines if line.startswith(name + "{") and label in line]
    return float(line.rsplit(" ", 1)[1])
