"""A fallback that cannot be opened leaves the engine's proof as it is."""

import re
from pathlib import Path

import pytest

from compiler_worker.fallback import open_fallback, smallest_of
from compiler_worker.requests import ProofRequest
from services.contracts.hardware import DeviceFacts
from services.contracts.recipe import Bucket, DimRange, Recipe
from tests.unit.services.controller import build_world as world


def request(tmp_path: Path, *, is_fallback_timed: bool) -> ProofRequest:
    return ProofRequest(
        manifest=world.manifest(world.key()),
        master=world.MASTER,
        master_path=tmp_path / "absent.onnx",
        recipe=Recipe(),
        engine_dir=tmp_path,
        samples_path=None,
        device=DeviceFacts(generation="cpu-x86_64-v3", name="cpu", memory_gib=1, toolchain={}),
        cache_dir=tmp_path / "cache",
        num_threads=1,
        benchmark_s=0.0,
        benchmark_iterations=1,
        is_fallback_timed=is_fallback_timed,
    )


@pytest.mark.parametrize(
    ("is_timed", "words"),
    [(True, "not timed: .*absent.onnx"), (False, "SMELT_BENCHMARK_FALLBACK is off")],
)
def test_it_says_why_it_is_not_there(tmp_path: Path, is_timed: bool, words: str) -> None:
    opened = open_fallback(request(tmp_path, is_fallback_timed=is_timed), ())
    assert opened.contender is None
    assert re.search(words, opened.words)
    # Nothing half-written is left for the next one to read.
    assert list((tmp_path / "cache").rglob("*.pt2")) == []
    opened.close()


def test_it_is_warmed_at_the_smallest_sizes_that_hold_something() -> None:
    dims = {"batch": DimRange(min=2, opt=4, max=8), "n": DimRange(min=0, opt=4, max=8)}
    assert smallest_of(Bucket(dims=dims)).dims == {
        "batch": DimRange(min=2, opt=2, max=2),
        "n": DimRange(min=1, opt=1, max=1),
    }
