"""A fallback that cannot be opened leaves the engine's proof as it is."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from compiler_worker.children.requests import ProofRequest
from compiler_worker.master.opened import open_master
from compiler_worker.master.source import OnnxFile
from compiler_worker.proof.proof_job import ProofJob, proof_request
from compiler_worker.timing.fallback import open_fallback, smallest_of
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from services.contracts.selection.fallback_verdict import FallbackVerdict
from services.engines.fallback.fallback_program import importer_code
from tests.conformance.tiny_model import save_master, tiny_model
from tests.quick_worker import quick_worker
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


@pytest.mark.parametrize(
    ("refuted", "code", "is_timed"),
    [("far off", "", False), ("far off", "another importer's", True), ("", "", True)],
)
def test_no_engine_has_to_be_faster_than_a_fallback_that_is_wrong(
    tmp_path: Path, refuted: str, code: str, is_timed: bool
) -> None:
    worker = quick_worker(tmp_path)
    verdict = FallbackVerdict(refuted=refuted, code=code or importer_code())
    registry = worker.registry
    opened = open_master(OnnxFile(path=save_master(tiny_model(), tmp_path)), tmp_path / "m", print)
    version = registry.add_model_version(
        name="m",
        master=registry.publish_master(opened),
        recipe=Recipe(),
        source="s",
        source_fingerprint="0",
        fallback_verdict=verdict,
    )
    job = ProofJob(
        manifest=world.manifest(world.key()),
        engine_dir=tmp_path,
        version=version,
        device=DeviceFacts(generation="cpu-x86_64-v3", name="cpu", memory_gib=1, toolchain={}),
    )
    settings = worker.settings.model_copy(update={"benchmark_fallback": True})
    request = proof_request(job, replace(worker, settings=settings), tmp_path)
    assert request.is_fallback_timed is is_timed
