"""Which calls share a batch: the answer is that of asking every bucket each time."""

import random

import pytest

from services.contracts.recipe import Bucket, DimRange
from services.replica.filling import Filling
from services.replica.joining import JoinRules
from services.replica.run_shapes import RunShapes
from services.replica.signature import Signature, fits
from tests.unit.services.replica.models import text_model

MODEL = text_model()
RULES = JoinRules.from_model(MODEL, Signature.from_model(MODEL))


def _bucket(**largest: int) -> Bucket:
    return Bucket(dims={dim: DimRange(min=1, opt=1, max=size) for dim, size in largest.items()})


BUCKETS = (_bucket(batch=8, sequence=4), _bucket(batch=2, sequence=16), _bucket(batch=5))


def _sizes(rows: int, length: int) -> dict[str, int]:
    return {"batch": rows, "sequence": length}


@pytest.mark.parametrize("buckets", [BUCKETS, BUCKETS[:2], BUCKETS[:1]])
def test_what_fits_is_what_some_bucket_holds(buckets: tuple[Bucket, ...]) -> None:
    draw = random.Random(7)
    for _ in range(300):
        filling = Filling(RULES, RunShapes(RULES, buckets))
        wanted = _sizes(draw.randint(1, 3), draw.choice((2, 4, 9)))
        filling.begin(wanted)
        for _ in range(12):
            new = _sizes(draw.choice((1, 1, 1, 2)), draw.choice((2, 2, 4, 9)))
            merged = RULES.merged(wanted, new)
            assert merged is not None
            is_fitting = any(fits(bucket, merged, RULES.growing) for bucket in buckets)
            assert filling.add(new) is is_fitting
            wanted = merged if is_fitting else wanted
            assert filling.sizes == wanted
            one_more = wanted | {"batch": wanted["batch"] + 1}
            assert filling.is_full is not any(
                fits(bucket, one_more, RULES.growing) for bucket in buckets
            )


def test_a_bucket_without_rows_bounds_none() -> None:
    filling = Filling(RULES, RunShapes(RULES, (_bucket(sequence=4),)))
    filling.begin(_sizes(1000, 4))
    assert filling.add(_sizes(1000, 4))
    assert not filling.is_full
    assert not filling.add(_sizes(1, 5))


def test_a_first_call_is_taken_whatever_its_sizes() -> None:
    filling = Filling(RULES, RunShapes(RULES, BUCKETS[:1]))
    filling.begin(_sizes(1, 99))
    assert filling.sizes == _sizes(1, 99)
    assert filling.is_full
