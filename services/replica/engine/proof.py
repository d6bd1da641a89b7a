"""Has an engine that is suspect prove itself, beside the batches and beside who asks for it."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from services.contracts.errors import EngineError
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Bucket
from services.replica.closing import ended
from services.replica.engine.executor import EngineExecutor
from services.replica.engine.worker import EngineWorker

logger = logging.getLogger(__name__)

# Serve gives up a health check after 30 s, and a replica after three: a proof of many sizes, with
# a batch between each two, takes what it takes, and is asked for again by the next check.
_MOST_WAIT_S = 10.0
# Clients that send what every engine fails on would have it proven without end. It pauses nine
# times as long as a proof took, but not so long that a broken engine goes unnoticed.
_PAUSE = 9.0
_MOST_PAUSE_S = 60.0

SamplesOf = Callable[[Sequence[Bucket]], Iterable[Mapping[str, Array]]]


class EngineProof:
    """One proof at a time, of the engine in a worker's executor.

    Attributes:
        most_wait_s: how long a check waits for a verdict.
    """

    def __init__(
        self,
        worker: EngineWorker,
        samples_of: SamplesOf,
        *,
        most_wait_s: float = _MOST_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prove the engine of `worker` with inputs that are known to be good.

        Args:
            worker: whose engine it is.
            samples_of: the inputs, for an engine of these buckets.
            most_wait_s: see the class.
            clock: monotonic seconds.
        """
        self._worker = worker
        self._samples_of = samples_of
        self.most_wait_s = most_wait_s
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._fault: tuple[EngineExecutor, EngineError] | None = None
        self._passed: EngineExecutor | None = None
        self._paused_until_s = 0.0

    async def check(self) -> None:
        """Ask for a proof if the engine is suspect; no news within the wait is good news.

        Raises:
            EngineError: the engine failed its proof, and its standby too, and has answered
                nothing since.
        """
        if not self._worker.is_suspect:
            self._fault = None
            return
        if self._task is None and not self._is_paused():
            self._task = asyncio.create_task(self._prove(), name="engine-proof")
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self.most_wait_s)
        if self._fault and self._fault[0] is self._worker.executor:
            raise self._fault[1]

    async def close(self) -> None:
        """End the proof that is under way."""
        if self._task is not None:
            await ended(self._task)

    def _is_paused(self) -> bool:
        return self._passed is self._worker.executor and self._clock() < self._paused_until_s

    async def _prove(self) -> None:
        executor = self._worker.executor
        began_s = self._clock()
        try:
            await self._worker.prove(self._samples_of(executor.loaded.buckets))
        except EngineError as error:
            self._fault = executor, error
        except Exception as error:  # whatever it is: what is not proven is not healthy
            logger.exception("the proof of an engine failed")
            words = f"its proof failed: {type(error).__name__}: {error}"
            self._fault = executor, EngineError(words)
        else:
            self._fault = None
            self._passed = executor
            now_s = self._clock()
            self._paused_until_s = now_s + min(_PAUSE * (now_s - began_s), _MOST_PAUSE_S)
        finally:
            self._task = None
