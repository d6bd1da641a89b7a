"""Rates of requests, from pages of replicas' metrics."""

from threading import Barrier, Event
from typing import Any

import pytest

from services.controller.page.live_rates import LiveRates


def page(requests: float, dropped: float = 0, worker: str = "a", model: str = "m") -> str:
    """What Ray's agent exports: a third of the batches took up to 1 ms, all up to 2 ms."""
    place = f'model="{model}",version="1",WorkerId="{worker}"'
    return (
        "# TYPE ray_smelt_queue_duration_seconds_count gauge\n"
        f'ray_smelt_queue_duration_seconds_count{{{place},kind="openvino"}} {requests}\n'
        f'ray_smelt_queue_duration_seconds_bucket{{{place},le="0.001"}} {requests}\n'
        f'ray_smelt_queue_dropped_total{{{place},reason="refused"}} {dropped}\n'
        f'ray_smelt_compute_duration_seconds_bucket{{{place},le="0.001"}} {requests / 3}\n'
        f'ray_smelt_compute_duration_seconds_bucket{{{place},le="0.002"}} {requests}\n'
        f'ray_smelt_compute_duration_seconds_bucket{{{place},le="+Inf"}} {requests}\n'
    )


def looked(*looks: dict[str, str | None]) -> list[dict[str, Any]]:
    """The rates after looks at these pages, ten seconds apart."""
    pages: dict[str, str | None] = {}
    rates = LiveRates(read=pages.get)
    found: list[dict[str, Any]] = []
    for number, each in enumerate(looks):
        pages.update(each)
        found = rates.look(pages, 10.0 * number)
    return found


def test_rates_are_what_was_added_between_looks() -> None:
    first = {"one:1": page(300), "two:1": page(30, worker="b")}
    assert looked(first) == []
    (found,) = looked(first, {"one:1": page(600, dropped=5)})
    assert (found["name"], found["version"]) == ("m", 1)
    assert (found["requests_per_s"], found["dropped_per_s"]) == (30.0, 0.5)
    assert found["batch_p50_at_most_s"] == 0.002


def test_a_replica_that_began_since_counts_from_nothing() -> None:
    (found,) = looked({"one:1": page(1000)}, {"one:1": page(50, worker="b")})
    assert found["requests_per_s"] == 5.0


def test_an_agent_that_did_not_answer_before_adds_nothing() -> None:
    found = looked({"one:1": None, "two:1": page(0)}, {"one:1": page(10**6)})
    assert [each["requests_per_s"] for each in found] == [0.0]


def test_agents_that_do_not_answer_are_waited_for_together_and_once() -> None:
    asked = Barrier(3)
    ended = Event()

    def read(address: str) -> str | None:
        if address == "good:1":
            return page(10)
        # All of them are asked before one of them gives up.
        asked.wait()
        ended.wait()
        return None

    rates = LiveRates(read, within_s=1.0)
    addresses = ("one:1", "good:1", "two:1", "three:1")
    rates.look(addresses[1:2], 0.0)
    try:
        (found,) = rates.look(addresses, 10.0)
    finally:
        ended.set()
    assert found["requests_per_s"] == 0.0


@pytest.mark.parametrize("text", ["ray_smelt_queue_duration_seconds_count{ 7", "count{} 1", None])
def test_one_page_that_cannot_be_read_spoils_no_other(text: str | None) -> None:
    wrong = f"{text}\n" if text else 'ray_smelt_queue_duration_seconds_count{version="x"} 1\n'
    (found,) = looked({"one:1": page(0), "two:1": wrong}, {"one:1": page(10)})
    assert found["requests_per_s"] == 1.0


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    (found,) = looked({"one:1": page(0)}, *[{"one:1": page(600)}] * 8)
    assert (found["requests_per_s"], found["batch_p50_at_most_s"]) == (0.0, None)


def test_hostile_names_are_read_as_they_are() -> None:
    name = 'a\\"b} 7\\n'
    other = "ray_other_total 5\n"
    (found,) = looked({"one:1": page(0, model=name)}, {"one:1": other + page(10, model=name)})
    assert (found["name"], found["requests_per_s"]) == ('a"b} 7\n', 1.0)
