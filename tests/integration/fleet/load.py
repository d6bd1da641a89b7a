"""Concurrent callers that check every answer: load for tests that break or change a fleet."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from services.contracts.kserve.tensors import Array

OK = "OK"
UNAVAILABLE = "UNAVAILABLE"
# A client that was told UNAVAILABLE tries again; at once would only load the machine.
RETRY_PAUSE_S = 0.02
# No call may get near it: an answer or an error comes long before.
DEADLINE_S = 60.0
# Of thousands of calls on a machine that builds meanwhile; it only ends a test that fails.
WAIT_S = 240.0
Correct = Callable[[Array, Array], bool]


class Load:
    """Callers in a closed loop, each with a random row of its own for every request.

    Attributes:
        outcomes: number of calls by status.
        num_wrong: answers that were not right.
        longest_s: duration of the slowest call.
        failures: messages of the first few calls that were not OK.
    """

    def __init__(self, address: str, model: str, is_correct: Correct, width: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.num_wrong = 0
        self.longest_s = 0.0
        self.failures: list[str] = []
        self._address, self._model, self._width = address, model, width
        self._is_correct = is_correct
        self._progress = asyncio.Condition()
        self._rng = np.random.default_rng(0)

    async def wait_for(self, outcome: str, num_more: int) -> None:
        """Return when so many more calls had this outcome."""
        wanted = self.outcomes[outcome] + num_more
        async with asyncio.timeout(WAIT_S), self._progress:
            await self._progress.wait_for(lambda: self.outcomes[outcome] >= wanted)

    @asynccontextmanager
    async def running(self, num_callers: int) -> AsyncIterator["Load"]:
        """Call until the block ends; every call that began is then awaited."""
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as callers:
            for _ in range(num_callers):
                callers.create_task(self._call_until(is_over))
            try:
                yield self
            finally:
                is_over.set()

    async def _call_until(self, is_over: asyncio.Event) -> None:
        # A connection of its own for each caller, as callers in other processes have.
        async with triton.InferenceServerClient(self._address) as client:
            while not is_over.is_set():
                outcome = await self._call(client)
                async with self._progress:
                    self.outcomes[outcome] += 1
                    self._progress.notify_all()
                if outcome != OK:
                    await asyncio.sleep(RETRY_PAUSE_S)

    async def _call(self, client: triton.InferenceServerClient) -> str:
        """One request; the status it ended with."""
        inputs = self._drawn()
        tensors = []
        for name, array in inputs.items():
            tensor = triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
            tensors.append(tensor.set_data_from_numpy(array))
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            result = await client.infer(self._model, tensors, client_timeout=DEADLINE_S)
        except InferenceServerException as error:
            return self._failed(error)
        finally:
            self.longest_s = max(self.longest_s, loop.time() - began_s)
        if not self._is_correct(next(iter(inputs.values())), result.as_numpy("y")):
            self.num_wrong += 1
        return OK

    def _drawn(self) -> dict[str, Array]:
        """The inputs of a request; answers are checked by the first."""
        return {"x": self._rng.standard_normal((1, self._width)).astype(np.float32)}

    def _failed(self, error: InferenceServerException) -> str:
        status = str(error.status()).removeprefix("StatusCode.")
        if len(self.failures) < 5:
            self.failures.append(f"{status}: {error.message()}")
        return status


async def concurrent(
    address: str, model: str, is_correct: Correct, width: int, num_calls: int, num_callers: int = 16
) -> Load:
    """A load of at least this many answers, ended."""
    load = Load(address, model, is_correct, width)
    async with load.running(num_callers):
        await load.wait_for(OK, num_calls)
    return load
