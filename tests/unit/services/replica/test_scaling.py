"""How many replicas a load on a GPU asks for; and what a replica measures of its load."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from services.replica.batching.batch_report import BatcherTimes
from services.replica.reporting import load
from services.replica.reporting.load import ReplicaLoad
from services.replica.scaling import number_arguments, wanted, wanted_replicas

CALM = {"busy": 0.2, "pressed": 0.0, "gpu": 0.1, "processors": 0.3}
PRESSED = {"busy": 1.0, "pressed": 0.9, "gpu": 0.2, "processors": 0.3}


@pytest.mark.parametrize(
    ("num_running", "found", "number"),
    [
        (1, PRESSED, 2),
        (2, PRESSED, 4),
        # Only as many as fill the GPU.
        (4, PRESSED | {"gpu": 0.56}, 7),
        (4, PRESSED | {"gpu": 0.85}, 5),
        (2, PRESSED | {"gpu": 0.5999999999999999}, 3),
        (4, PRESSED | {"gpu": 0.95}, 4),
        (4, PRESSED | {"gpu": 0.5, "processors": 0.97}, 4),
        (3, {}, 3),
        # One caller at a time keeps a replica busy, and has nothing of a second one.
        (1, CALM | {"busy": 0.9}, 1),
        (1, CALM | {"busy": 0.0}, 1),
        (8, CALM, 3),
        (8, CALM | {"busy": 0.0}, 1),
        (8, CALM | {"busy": 0.7}, 8),
    ],
)
def test_more_serve_until_something_else_is_the_bound(
    num_running: int, found: Mapping[str, float], number: int
) -> None:
    assert wanted(num_running, found) == number


def test_a_replica_s_load_is_of_the_time_since_the_last_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = BatcherTimes(10.0, 4.0)
    now_s = 100.0
    monkeypatch.setattr(load, "gpu_busy_share", lambda: 0.25)
    looked = ReplicaLoad(lambda: times, lambda: now_s)
    times = BatcherTimes(13.0, 5.0)
    now_s = 104.0
    found = looked.sample()
    assert (found["busy"], found["pressed"], found["gpu"]) == (0.75, 0.25, 0.25)
    assert 0 <= found["processors"] <= 1
    # A batch that began before the last look and has ended now.
    times = BatcherTimes(18.0, 10.0)
    now_s = 108.0
    assert looked.sample()["busy"] == 1.0


@pytest.mark.parametrize(
    ("num_replicas", "num_gpus", "number"),
    [("auto", 0.1, None), ("auto", 0, 1), (3, 0.1, 3), ("auto", 1, None)],
)
def test_serve_decides_on_gpus_alone(
    num_replicas: int | str, num_gpus: float, number: int | None
) -> None:
    found = number_arguments(num_replicas, num_gpus)
    if number is None:
        assert found["autoscaling_config"]["min_replicas"] == 1
    else:
        assert found == {"num_replicas": number}


class Context(SimpleNamespace):
    """What Serve gives its policy, with two replicas that report a load each."""

    def __init__(self, num_running: int, num_targeted: int, now_s: float, state: Any) -> None:
        names = [f"r{place}" for place in range(num_running)]
        super().__init__(
            current_num_replicas=num_running,
            target_num_replicas=num_targeted,
            current_time=now_s,
            policy_state=state,
            aggregated_metrics={k: dict.fromkeys(names, v) for k, v in PRESSED.items()},
        )


def test_a_load_counts_once_all_replicas_have_been_there_for_as_long_as_it_is_of() -> None:
    state: dict[str, Any] = {}
    found = []
    for num_running, num_targeted, now_s in (
        (1, 1, 100.0), (1, 1, 115.0), (1, 1, 116.0),
        (1, 2, 117.0), (1, 2, 140.0), (2, 2, 141.0), (2, 2, 156.0), (2, 2, 157.0),
    ):  # fmt: skip
        number, state = wanted_replicas(Context(num_running, num_targeted, now_s, state))
        found.append(number)
    assert found == [1, 1, 2, 2, 2, 2, 2, 4]
