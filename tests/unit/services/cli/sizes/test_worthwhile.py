"""`smelt buckets` proposes others where they pay, and else says why today's are kept."""

from collections.abc import Mapping
from typing import Any

import pytest

from services.cli.planning.curves import Curve
from services.cli.sizes.bucket_advice import SizeCounts
from services.cli.sizes.buckets import advice_document
from services.cli.sizes.buckets_text import buckets_text
from services.cli.sizes.measured_cost import MeasuredCost
from services.cli.sizes.observed_sizes import ObservedSizes
from services.contracts.model.batching import Batching
from services.contracts.model.recipe import Bucket, DimRange
from tests.unit.services.cli.planning.planned_model import planned_model

ROWS = DimRange(min=1, opt=8, max=8)


def advised(
    counts: Mapping[int, int],
    *spans: tuple[int, int],
    num: int = 0,
    measured: MeasuredCost | None = None,
) -> dict[str, Any]:
    """What is advised for lengths, by today's buckets from one length to another."""
    buckets = (
        Bucket(dims={"batch": ROWS, "length": DimRange(min=least, opt=most, max=most)})
        for least, most in spans
    )
    seen = ObservedSizes(real=1.0, padded=1.0)
    total = sum(size * count for size, count in counts.items())
    seen.dims["length"] = SizeCounts(dict(counts), total)
    return advice_document(planned_model(*buckets), seen, num, lambda _: measured)


def kept(document: Mapping[str, Any]) -> str:
    """Why today's buckets are kept; a reason comes without a proposal."""
    (words,) = [each["kept"] for each in document["dimensions"].values()]
    assert (document["recipe"] is None) is bool(words)
    return str(words)


def shown(document: dict[str, Any]) -> list[str]:
    """Lines for people, without the tables."""
    return list(map(str, buckets_text(document | {"published": None, "note": ""})))


@pytest.mark.parametrize(
    ("counts", "moved", "saved"),
    [({8: 1014, 300: 3}, "0.3%", "6.6%"), ({8: 1000, 500: 100}, "9.1%", "2.0%")],
    ids=["of few requests", "little"],
)
def test_what_saves_too_little_is_not_proposed(
    counts: Mapping[int, int], moved: str, saved: str
) -> None:
    assert kept(advised(counts, (1, 8), (1, 512))) == (
        f"length: today's buckets are good: better ones would run {moved} of the requests at "
        f"another shape and save {saved} of the computation; they are proposed from 2% and 5% on"
    )


def test_what_saves_enough_is_proposed() -> None:
    assert kept(advised({8: 1000, 480: 100}, (1, 8), (1, 512))) == ""


def test_fewer_buckets_than_there_are_are_proposed_to_who_asks_for_them() -> None:
    document = advised({8: 9, 64: 9}, (1, 8), (1, 64), num=1)
    assert kept(document) == ""
    assert len(document["recipe"]["buckets"]) == 1


def test_buckets_of_one_length_count_each_where_fewer_are_asked_for() -> None:
    spans = [DimRange(min=1, opt=rows, max=rows) for rows in (2, 8)]
    length = DimRange(min=1, opt=512, max=512)
    model = planned_model(*(Bucket(dims={"batch": span, "length": length}) for span in spans))
    seen = ObservedSizes(real=1.0, padded=1.0)
    seen.dims["length"] = SizeCounts({512: 100}, 51200)
    document = advice_document(model, seen, 1)
    assert kept(document) == ""
    assert document["dimensions"]["length"]["shapes_proposed"] == [(512, 8)]


@pytest.mark.parametrize(("delay_ms", "rows"), [(0.0, [2, 8]), (2.0, [8])])
def test_an_engine_that_waits_for_full_buckets_gets_none_of_few_rows(
    delay_ms: float, rows: list[int]
) -> None:
    curve = Curve.through("xla fp32", [(512, 0.001), (4096, 0.008)], pads_to_largest=True)
    assert curve is not None
    model = planned_model(Bucket(dims={"batch": ROWS, "length": DimRange(min=1, opt=9, max=512)}))
    recipe = model.recipe.model_copy(update={"batching": Batching(max_delay_ms=delay_ms)})
    seen = ObservedSizes(real=1.0, padded=1.0, batches={2: 9.0, 8: 1.0})
    seen.dims["length"] = SizeCounts({512: 100}, 51200)
    document = advice_document(
        model.model_copy(update={"recipe": recipe}), seen, 0, lambda _: MeasuredCost(curve=curve)
    )
    shapes = document["dimensions"]["length"]["shapes_proposed"]
    assert [shape.rows for shape in shapes] == rows


def test_an_engine_that_runs_at_the_sizes_of_requests_has_nothing_to_gain_from_lengths() -> None:
    curve = Curve.through("openvino fp32", [(8, 0.001), (4096, 0.5)])
    assert curve is not None
    measured = MeasuredCost(curve=curve, name="openvino fp32 on x", others=1)
    counts = {8: 900, 100: 100}
    assert "openvino fp32 on x computes requests at their own sizes" in kept(
        advised(counts, (1, 512), measured=measured)
    )
    flat = Curve.through("openvino fp32", [(8, 0.1), (800, 0.1), (4096, 0.5)])
    assert flat is not None
    faster = MeasuredCost(curve=flat, name="openvino fp32 on x", others=1)
    assert kept(advised(counts, (1, 512), measured=faster)) == "", "by more rows"
    # A bucket of one length pads all requests to it, whatever computes them.
    assert kept(advised(counts, (512, 512), measured=measured)) == ""


def test_what_more_rows_gain_counts_no_padding_that_an_engine_does_not_compute() -> None:
    curve = Curve.through("openvino fp32", [(128, 0.001), (512, 0.0025), (4096, 0.02)])
    assert curve is not None
    measured = MeasuredCost(curve=curve, name="openvino fp32 on x", others=1)
    counts = {16: 500, 32: 300, 64: 150, 512: 50}
    document = advised(counts, (1, 512), measured=measured)
    before = sum(count * curve.run_s(8 * size) / 8 for size, count in counts.items())
    rows = {16: 16, 32: 8, 64: 8, 512: 8}
    after = sum(n * curve.run_s(rows[size] * size) / rows[size] for size, n in counts.items())
    advice = document["dimensions"]["length"]
    assert advice["shapes_proposed"] == [(16, 16), (512, 8)]
    assert advice["speedup"] == pytest.approx(before / after)
    (gain,) = [each for each in shown(document) if "measurements of" in each]
    assert gain.startswith(f"length: {before / after:.2f}x the rows/s, by measurements of ")
