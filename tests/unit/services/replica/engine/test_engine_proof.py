"""When a suspect engine is asked for a proof, and how long anybody waits for the verdict."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from services.contracts.errors import EngineError
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Bucket
from services.replica.engine.proof import EngineProof, SamplesOf
from services.replica.engine.worker import MAX_FAILURES_IN_A_ROW
from tests.unit.services.replica.models import text_model
from tests.unit.services.replica.toy_batcher import (
    Bench,
    ToyEngine,
    bench,
    changed,
    submit,
    text_call,
)

LENGTHS = (1, 2, 3)


@dataclass
class Suspect:
    """An engine that has to prove itself."""

    bench: Bench
    proof: EngineProof

    async def become(self) -> None:
        """Fail so often in a row that it has to."""
        self.bench.engine.error_by_id[1] = RuntimeError("bad row")
        for _ in range(MAX_FAILURES_IN_A_ROW):
            with pytest.raises(EngineError):
                await submit(self.bench.batcher, text_call())
        self.bench.engine.error_by_id.clear()
        assert self.bench.worker.is_suspect
        self.bench.engine.ran.clear()


def samples_of(_: Sequence[Bucket]) -> Iterable[Mapping[str, Array]]:
    return (text_call(length=length).inputs for length in LENGTHS)


@asynccontextmanager
async def suspect(
    most_wait_s: float = 30.0, samples_of: SamplesOf = samples_of
) -> AsyncIterator[Suspect]:
    async with bench(text_model()) as b:
        proof = EngineProof(b.worker, samples_of, most_wait_s=most_wait_s, clock=b.clock)
        found = Suspect(b, proof)
        await found.become()
        yield found
        b.engine.may_run.set()
        await proof.close()


def take_2_s(b: Bench) -> None:
    """Let each run of the engine take so long."""
    plain_run = b.engine.run

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        b.clock.now_s += 2.0
        return plain_run(inputs)

    b.engine.run = run  # type: ignore[method-assign]


async def test_an_engine_that_passes_is_suspect_no_more() -> None:
    async with suspect() as s:
        await s.proof.check()
        assert s.bench.engine.ran == [(1, length) for length in LENGTHS]
        assert not s.bench.worker.is_suspect


async def test_a_proof_that_takes_long_is_awaited_by_the_checks_that_follow() -> None:
    async with suspect(most_wait_s=0.0) as s:
        s.bench.engine.may_run.clear()
        for _ in range(3):
            await s.proof.check()
        s.bench.engine.may_run.set()
        async with asyncio.timeout(30):
            while s.bench.worker.is_suspect:
                await s.proof.check()
                await asyncio.to_thread(s.bench.engine.is_running.wait, 0.01)
        # One proof, however many asked for it.
        assert s.bench.engine.ran == [(1, length) for length in LENGTHS]


async def test_a_bad_verdict_holds_until_a_better_one() -> None:
    async with suspect() as s:
        s.bench.engine.error_by_run = {1: RuntimeError("bad kernel")}
        with pytest.raises(EngineError, match="bad kernel"):
            await s.proof.check()
        s.bench.engine.may_run.clear()
        s.proof.most_wait_s = 0.0
        for _ in range(3):
            with pytest.raises(EngineError, match="bad kernel"):
                await s.proof.check()
        s.bench.engine.may_run.set()
        s.proof.most_wait_s = 30.0
        await s.proof.check()
        assert s.bench.engine.ran == [(1, 1), (1, 2), (1, 1), (1, 2), (1, 3)]


async def test_an_answer_ends_a_bad_verdict() -> None:
    async with suspect() as s:
        s.bench.engine.error_by_run = {0: RuntimeError("bad kernel")}
        with pytest.raises(EngineError):
            await s.proof.check()
        await submit(s.bench.batcher, text_call())
        await s.proof.check()
        assert s.bench.engine.ran == [(1, 1), (1, 2)]
        # Nor is it that of the next proof, before there is one.
        await s.become()
        s.bench.engine.may_run.clear()
        s.proof.most_wait_s = 0.0
        await s.proof.check()


async def test_verdicts_are_of_the_engine_that_was_proven() -> None:
    async with suspect() as s:
        bad, worker = s.bench.engine, s.bench.worker
        bad.error_by_run = {0: RuntimeError("bad kernel")}
        with pytest.raises(EngineError):
            await s.proof.check()
        s.bench.engine = ToyEngine()
        take_2_s(s.bench)
        old = worker.replace(changed(worker.executor, engine=s.bench.engine))
        await s.become()
        s.bench.engine.may_run.clear()
        s.proof.most_wait_s = 0.0
        await s.proof.check()
        s.bench.engine.may_run.set()
        s.proof.most_wait_s = 30.0
        await s.proof.check()
        # The one before has not passed, and the time of rest is not its own.
        s.bench.engine = bad
        bad.error_by_run.clear()
        worker.replace(old)
        await s.become()
        await s.proof.check()
        assert bad.ran == [(1, length) for length in LENGTHS]


async def test_a_proof_that_cannot_be_made_is_no_good_news() -> None:
    def fail(_: Sequence[Bucket]) -> Iterable[Mapping[str, Array]]:
        raise MemoryError("no room for samples")

    async with suspect(samples_of=fail) as s:
        with pytest.raises(EngineError, match="its proof failed: MemoryError: no room"):
            await s.proof.check()


async def test_clients_cannot_have_an_engine_proven_without_end() -> None:
    async with suspect() as s:
        take_2_s(s.bench)
        await s.proof.check()
        # 54 s after one that took 6 s, and no more than 60 after any.
        for passed_s, num_runs in ((30.0, 0), (30.0, len(LENGTHS))):
            await s.become()
            s.bench.clock.now_s += passed_s
            await s.proof.check()
            assert len(s.bench.engine.ran) == num_runs


async def test_an_engine_rests_a_minute_at_most() -> None:
    async with suspect() as s:
        plain_run = s.bench.engine.run
        for _ in range(10):  # each adds 2 s
            take_2_s(s.bench)
        await s.proof.check()
        s.bench.engine.run = plain_run  # type: ignore[method-assign]
        for passed_s, num_runs in ((50.0, 0), (11.0, len(LENGTHS))):
            await s.become()
            s.bench.clock.now_s += passed_s
            await s.proof.check()
            assert len(s.bench.engine.ran) == num_runs
