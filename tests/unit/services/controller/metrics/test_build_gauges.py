"""What the build loop shows of itself, and what it tells the compiler to do."""

from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry

from services.contracts.builds.build_plan import TaskStart
from services.contracts.events import Event, EventKind
from services.controller.build.build_policy import Decision
from services.controller.interfaces import BuildTask
from services.controller.metrics.build_gauges import BuildGauges
from services.controller.platform.command import worker_arguments
from services.telemetry.catalog import BUILD_LOOP_METRICS
from services.telemetry.prometheus_recorder import PrometheusRecorder
from tests.unit.services.controller import build_world as world

LABELS = {"model": "m", "generation": world.GENERATION}
NOW = datetime(2026, 1, 1, tzinfo=UTC).isoformat()


def test_what_is_over_shows_zero() -> None:
    collectors = CollectorRegistry()
    gauges = BuildGauges(PrometheusRecorder(BUILD_LOOP_METRICS, collectors))

    def shown() -> list[float | None]:
        each = (m for m in BUILD_LOOP_METRICS if m.labels)
        return [collectors.get_sample_value(m.name, LABELS) for m in each]

    start = TaskStart(
        name="t",
        model="m",
        version=1,
        node_class=world.NODE_CLASS,
        is_anywhere=False,
        created_at=NOW,
    )
    given_up = Event(
        kind=EventKind.QUARANTINED,
        model="m",
        version=1,
        generation=world.GENERATION,
        key="k",
        mark="k",
    )
    where = frozenset({("m", world.GENERATION)})
    gauges.show(Decision(quarantined=(given_up,) * 2, without_engine=where), [start], [start])
    assert shown() == [1, 1, 2, 1]
    gauges.show(Decision(with_engine=where), [start], [])
    assert shown() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "tail"),
    [
        ({}, ["--untried"]),
        ({"is_anywhere": True}, ["--elsewhere", "--untried"]),
        ({"is_first": True}, ["--first", "--untried"]),
        ({"compiler": "image:1"}, ["--compiler", "image:1", "--untried"]),
        ({"key_digests": ("a", "b")}, ["--key", "a", "--key", "b"]),
    ],
)
def test_a_task_in_the_compilers_words(changes: dict[str, object], tail: list[str]) -> None:
    fields: dict[str, object] = {
        "name": "t",
        "model": "m",
        "version": 3,
        "node_class": world.NODE_CLASS,
        "is_anywhere": False,
    }
    task = BuildTask(**fields | changes)  # type: ignore[arg-type]
    head = ["build", "m", "--version", "3", "--generation", world.GENERATION]
    assert worker_arguments(task) == head + tail
