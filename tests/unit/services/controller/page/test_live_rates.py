"""Rates of requests, from pages of replicas' metrics."""

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


def test_rates_are_what_was_added_between_looks() -> None:
    pages = {"one:1": page(300), "two:1": page(30, worker="b")}
    rates = LiveRates(read=pages.get)
    rates.look(pages, 0.0)
    assert rates.rates() == {}
    pages["one:1"] = page(600, dropped=5)
    rates.look(pages, 10.0)
    found = rates.rates()["m", 1]
    assert (found["requests_per_s"], found["dropped_per_s"]) == (30.0, 0.5)
    assert found["batch_p50_s"] == pytest.approx(0.00125)


def test_a_replica_that_is_started_again_counts_from_nothing() -> None:
    pages: dict[str, str | None] = {"one:1": page(1000)}
    rates = LiveRates(read=pages.get)
    for now_s, text in ((0.0, page(1000)), (10.0, page(50, worker="b")), (20.0, None)):
        pages["one:1"] = text
        rates.look(pages, now_s)
    assert rates.rates()["m", 1]["requests_per_s"] == 2.5


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    pages = {"one:1": page(0)}
    rates = LiveRates(read=pages.get)
    for look in range(9):
        pages["one:1"] = page(0 if look < 1 else 600)
        rates.look(pages, 10.0 * look)
    found = rates.rates()["m", 1]
    assert (found["requests_per_s"], found["batch_p50_s"]) == (0.0, None)


def test_other_metrics_and_hostile_names_are_read_as_they_are() -> None:
    name = 'a\\"b} 7\\n'
    pages = {"one:1": page(0, model=name)}
    rates = LiveRates(read=pages.get)
    rates.look(pages, 0.0)
    pages["one:1"] = page(10, model=name) + "ray_other_total 5\n"
    rates.look(pages, 10.0)
    assert rates.rates()['a"b} 7\n', 1]["requests_per_s"] == 1.0
