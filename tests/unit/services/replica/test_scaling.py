"""How many replicas a load on a GPU asks for; and what a replica measures of its load."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from services.replica import scaling
from services.replica.batching.batch_report import BatcherTimes
from services.replica.reporting import load
from services.replica.reporting.load import ReplicaLoad
from services.replica.scaling import Scaling, number_arguments, wanted

CALM = {"busy": 0.2, "pressed": 0.0, "gpu": 0.1, "processors": 0.3, "calls": 10.0}
PRESSED = {"busy": 1.0, "pressed": 0.9, "gpu": 0.2, "processors": 0.3, "calls": 1000.0}


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
        # The load ended within the time that the means are of; it had filled the GPU.
        (4, PRESSED | {"busy": 0.6, "pressed": 0.55, "gpu": 0.54}, 4),
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
    times = BatcherTimes(10.0, 4.0, 100)
    now_s = 100.0
    monkeypatch.setattr(load, "gpu_busy_share", lambda: 0.25)
    looked = ReplicaLoad(lambda: times, lambda: now_s)
    times = BatcherTimes(13.0, 5.0, 300)
    now_s = 104.0
    found = looked.sample()
    assert (found["busy"], found["pressed"], found["gpu"]) == (0.75, 0.25, 0.25)
    assert found["calls"] == 50.0
    assert 0 <= found["processors"] <= 1
    # A batch that began before the last look and has ended now.
    times = BatcherTimes(18.0, 10.0, 300)
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


class Serve:
    """What Serve does with its policy: seconds pass, replicas start after some."""

    def __init__(self, room: int = 99) -> None:
        self.now_s = 1000.0
        self.num_running = self.num_targeted = 1
        self.room = room
        self.load = PRESSED
        self.others_wait = False
        self.scaling = Scaling()

    def numbers(self, seconds: int) -> list[int]:
        """Each number of replicas that was wanted within so many seconds."""
        found = [self.num_targeted]
        for _ in range(seconds):
            self.now_s += 1
            self.num_running = min(self.num_targeted, self.room)
            self.scaling.look(self.now_s, do_others_wait=self.others_wait)
            self.num_targeted = self.scaling.next_number(
                self.num_running, self.num_targeted, self.load, self.now_s
            )
            if self.num_targeted != found[-1]:
                found.append(self.num_targeted)
        return found


def test_a_load_counts_once_all_replicas_have_been_there_for_as_long_as_it_is_of() -> None:
    serve = Serve()
    assert serve.numbers(6) == [1]
    assert serve.numbers(1) == [1, 2]
    assert serve.numbers(6) == [2]
    assert serve.numbers(7) == [2, 4]


def test_fewer_run_when_fewer_have_been_enough_for_long() -> None:
    serve = Serve()
    assert serve.numbers(15)[-1] == 4
    serve.load = CALM
    assert serve.numbers(500) == [4]
    # A load in between counts.
    serve.load = CALM | {"busy": 0.6}
    assert serve.numbers(2) == [4]
    serve.load = CALM
    assert serve.numbers(600) == [4]
    assert serve.numbers(5) == [4, 2]


def test_what_finds_no_room_is_given_up_and_tried_again_much_later() -> None:
    serve = Serve(room=3)
    assert serve.numbers(160) == [1, 2, 4, 3]
    assert serve.numbers(250) == [3]
    assert serve.numbers(60)[:2] == [3, 6]


def test_what_adds_nothing_is_stopped_and_tried_again_much_later() -> None:
    serve = Serve()
    assert serve.numbers(15)[-1] == 4
    # All together answer no more than half of them did.
    serve.load = PRESSED | {"calls": PRESSED["calls"] / 2}
    assert serve.numbers(7) == [4, 2]
    assert serve.numbers(290) == [2]
    assert serve.numbers(20)[:2] == [2, 4]


def test_a_load_that_ends_says_nothing_of_those_that_came_last() -> None:
    serve = Serve()
    assert serve.numbers(15)[-1] == 4
    serve.load = PRESSED | {"calls": 600.0, "busy": 0.6, "pressed": 0.55, "gpu": 0.54}
    assert serve.numbers(20) == [4]
    serve.load = CALM
    assert serve.numbers(20) == [4]


def test_one_of_each_version_comes_before_anybody_s_second() -> None:
    serve = Serve()
    assert serve.numbers(15)[-1] == 4
    serve.others_wait = True
    # What has just come to Ray waits as well.
    assert serve.numbers(3) == [4]
    serve.others_wait = False
    assert serve.numbers(1) == [4]
    serve.others_wait = True
    assert serve.numbers(12) == [4, 1]
    serve.others_wait = False
    assert serve.numbers(200) == [1]


def test_serve_goes_on_where_ray_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> int:
        raise ConnectionError("no GCS")

    monkeypatch.setattr(scaling, "num_waiting_for_gpus", fails)
    context = SimpleNamespace(
        current_num_replicas=2,
        target_num_replicas=2,
        current_time=100.0,
        policy_state={},
        aggregated_metrics={name: {"r": value} for name, value in PRESSED.items()},
    )
    number, state = scaling.wanted_replicas(context)  # type: ignore[arg-type] # Serve's
    assert number == 2
    context.policy_state = state
    context.current_time = 116.0
    assert scaling.wanted_replicas(context)[0] == 4  # type: ignore[arg-type] # as above
