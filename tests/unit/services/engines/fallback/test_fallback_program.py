"""Programs of fallbacks on this disk: exported once, kept while they are wanted, within bounds."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, DimRange
from services.engines.fallback.fallback_program import MAX_AGE_S, kept_program

HOUR_S = 3600.0


@pytest.fixture
def kept(tmp_path: Path) -> Callable[..., Path]:
    """The program of the master of a name; one that has to be exported takes so many bytes."""

    def keep(
        name: str,
        *,
        num_bytes: int = 10,
        max_bytes: int = 25,
        buckets: tuple[Bucket, ...] = (Bucket(dims={}),),
    ) -> Path:
        master = MasterRecord(
            digest=name * 64, files={}, inputs=(), outputs=(), opset=20, num_parameters=1
        )

        def export(path: Path) -> None:
            path.write_bytes(bytes(num_bytes))

        return kept_program(tmp_path, master, buckets, export, max_bytes=max_bytes)

    return keep


def aged(path: Path, age_s: float) -> Path:
    at = time.time() - age_s
    os.utime(path, (at, at))
    return path


def test_a_program_is_exported_once(kept: Callable[..., Path]) -> None:
    first = kept("a")
    assert kept("a", num_bytes=99) == first
    assert first.stat().st_size == 10


def test_each_set_of_buckets_has_a_program_of_its_own(kept: Callable[..., Path]) -> None:
    """It is bounded by them."""
    spans = [DimRange(min=1, opt=1, max=size) for size in (8, 9)]
    programs = {kept("a", buckets=(Bucket(dims={"batch": span}),)) for span in spans}
    assert len(programs | {kept("a")}) == 3


def test_what_was_not_wanted_for_longest_goes_first(
    kept: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    older, wanted = aged(kept("a"), 9 * HOUR_S), aged(kept("b"), 10 * HOUR_S)
    assert kept("b") == wanted
    with caplog.at_level(logging.INFO):
        new = kept("c")
    assert [path.exists() for path in (older, wanted, new)] == [False, True, True]
    assert caplog.messages == [
        f"programs of fallbacks that were not used for long are removed: {'a' * 12}"
    ]


def test_one_that_was_just_wanted_stays_however_much_there_is(kept: Callable[..., Path]) -> None:
    """Its reader was given the path, and opens it next."""
    programs = [kept(name) for name in "abcd"]
    assert all(program.exists() for program in programs)


def test_one_that_is_too_large_alone_is_used_all_the_same(kept: Callable[..., Path]) -> None:
    other = aged(kept("a"), 2 * HOUR_S)
    assert kept("b", num_bytes=100).exists()
    assert not other.exists()


def test_what_nobody_wanted_for_a_month_goes(kept: Callable[..., Path]) -> None:
    forgotten = aged(kept("a"), MAX_AGE_S + HOUR_S)
    kept("b")
    assert not forgotten.exists()


def test_programs_of_another_importer_go_at_once(kept: Callable[..., Path]) -> None:
    former = kept("a").with_name(f"{'b' * 64}-x-r0-torch1.0.pt2")
    former.write_bytes(b"")
    kept("c")
    assert not former.exists()
