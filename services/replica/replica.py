"""One replica: engine, batcher, data port and control line, composed. Knows no Ray.

A request's life: the data server hands over its bytes, `infer` decodes and checks them,
the batcher joins them with others, the engine worker runs the batch, `infer` encodes the
answer. A swap of engines happens beside that and takes effect between two batches.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from services.contracts.errors import EngineError, NotReadyError
from services.contracts.hardware import DeviceFacts
from services.contracts.manifest import ModelVersion
from services.pb import fleet_v1_pb2 as fleet
from services.replica.batcher import Batcher, BatchReport
from services.replica.codec import call_from_request, response_from_outputs
from services.replica.engine_host import EngineHost
from services.replica.engine_seat import EngineSeat, EngineThread
from services.replica.engine_worker import STALL_S, EngineWorker
from services.replica.joining import JoinRules
from services.replica.loaded_engine import LoadedEngine
from services.replica.replica_metrics import ReplicaMetrics
from services.replica.samples import edge_sizes, sample_inputs
from services.replica.signature import Signature
from services.replica.statistics import Statistics
from services.telemetry.recorder import Recorder

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 10.0


class Replica:
    """Serves one model version with the best engine there is, and swaps it live.

    Attributes:
        signature: what requests are checked against.
        statistics: sums since the replica became ready.
    """

    def __init__(
        self,
        model: ModelVersion,
        device: DeviceFacts,
        host: EngineHost,
        recorder: Recorder,
        *,
        on_change: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Compose the parts; `load` makes them serve.

        Args:
            model: what to serve.
            device: where.
            host: loads engines.
            recorder: metrics.
            on_change: called when `state` or `loaded` differ from before.
            clock: monotonic seconds; deadlines are on it.
        """
        self.signature = Signature.from_model(model)
        self.statistics = Statistics(self.signature.name, self.signature.version)
        self.state = fleet.REPLICA_STATE_LOADING
        self.loaded: LoadedEngine | None = None
        self._model, self._device, self._host = model, device, host
        self._metrics = ReplicaMetrics(recorder, self.signature.name, self.signature.version)
        self._rules = JoinRules.from_model(model, self.signature)
        self._on_change = on_change
        self._clock = clock
        self._worker: EngineWorker | None = None
        self._batcher: Batcher | None = None
        self._swap_lock = asyncio.Lock()
        self._load_taken_s, self._load_taken_busy_s = clock(), 0.0

    @property
    def num_unanswered(self) -> int:
        """Requests that were accepted and not yet answered."""
        return self._batcher.num_unanswered if self._batcher else 0

    def take_load(self) -> dict[str, float]:
        """Figures for an autoscaling policy, over the time since the last call.

        `busy` is the share of time that the engine worked; a count of requests alone is 0 at
        most moments when a model is fast.
        """
        now_s, busy_s = self._clock(), self._worker.busy_s if self._worker else 0.0
        elapsed_s = now_s - self._load_taken_s
        busy = (busy_s - self._load_taken_busy_s) / elapsed_s if elapsed_s > 0 else 0.0
        self._load_taken_s, self._load_taken_busy_s = now_s, busy_s
        return {"unanswered": float(self.num_unanswered), "busy": min(max(busy, 0.0), 1.0)}

    async def load(self) -> None:
        """Choose, load and warm an engine; the replica can serve afterwards.

        Raises:
            EngineError: not even the fallback could be loaded.
        """
        thread = EngineThread()
        loaded = await thread.call_or_end(self._host.load)
        self._worker = EngineWorker(_seat(loaded, thread), clock=self._clock)
        self._batcher = Batcher(
            self._worker,
            self._rules,
            self._model.recipe.batching,
            on_batch=self._record_batch,
            clock=self._clock,
        )
        self._batcher.start()
        self._take_over(loaded)

    async def infer(self, payload: bytes | bytearray, deadline_s: float | None = None) -> bytes:
        """Answer a serialised ModelInferRequest with a serialised ModelInferResponse.

        Args:
            payload: the request's bytes, untouched.
            deadline_s: time on this replica's clock after which nobody wants the answer.

        Raises:
            InvalidRequestError, UnsupportedFeatureError, NotFoundError: see codec.
            OverloadedError, DeadlineExceededError, NotReadyError, EngineError: see batcher.
        """
        began_s = self._clock()
        try:
            answer = await self._answer(payload, deadline_s, began_s)
        except Exception:
            self.statistics.record_failure(self._clock() - began_s)
            raise
        self.statistics.record_success(self._clock() - began_s)
        return answer

    async def swap_if_better(self) -> bool:
        """Select again; load another engine beside the present one and swap it in.

        Returns whether the engine changed. Requests are served all the while.
        """
        async with self._swap_lock:
            worker, batcher, current = self._worker, self._batcher, self.loaded
            if worker is None or batcher is None or current is None:
                return False
            thread = EngineThread()
            new = await thread.call_or_end(self._host.load_other_than, current.digest)
            if new is None:
                thread.end()
                return False
            async with batcher.between_batches:
                old = worker.replace(_seat(new, thread))
                self._take_over(new)
            await old.close()
        return True

    def set_state(self, state: fleet.ReplicaState) -> None:
        """Change the state that reports show."""
        self.state = state
        self._on_change()

    async def drain(self) -> None:
        """Take no new requests and wait for the accepted ones."""
        self.set_state(fleet.REPLICA_STATE_DRAINING)
        if self._batcher:
            await self._batcher.drain()

    async def close(self) -> None:
        """Stop the batcher and release the engine; a second call does nothing."""
        batcher, worker = self._batcher, self._worker
        self._batcher = self._worker = None
        if batcher:
            await batcher.close()
        if worker:
            # An engine that hangs cannot be closed; the process's end releases it.
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await worker.seat.close()

    async def check_health(self) -> None:
        """Raise EngineError when this replica cannot answer any more and must be replaced."""
        batcher, worker = self._batcher, self._worker
        if batcher is None or worker is None:
            return
        if not batcher.is_alive:
            raise EngineError("the batcher's task ended; the replica must be restarted")
        if worker.is_stalled:
            raise EngineError(f"engine has not returned for {STALL_S:.0f} s; restart the replica")
        if worker.is_suspect:
            # Clients may send what every engine fails on; that alone must not end a replica.
            specs, recipe = self._model.master.inputs, self._model.recipe
            smallest = edge_sizes(specs, worker.seat.buckets)[0]
            await worker.prove(sample_inputs(specs, recipe.inputs, smallest))

    async def _answer(
        self, payload: bytes | bytearray, deadline_s: float | None, began_s: float
    ) -> bytes:
        if self._batcher is None:
            raise NotReadyError(f"model '{self.signature.name}' is loading or was stopped here")
        self._batcher.admit()
        call = call_from_request(payload, self.signature)
        if call.timeout_s is not None:
            own_s = began_s + call.timeout_s
            deadline_s = own_s if deadline_s is None else min(deadline_s, own_s)
        outputs = await self._batcher.submit(call, deadline_s)
        return response_from_outputs(call, outputs, self.signature)

    def _take_over(self, loaded: LoadedEngine) -> None:
        self.loaded = loaded
        self._metrics.engine_changed(loaded, self._device.generation)
        self._on_change()

    def _record_batch(self, report: BatchReport) -> None:
        self.statistics.record_batch(report)
        self._metrics.record_batch(report)


def _seat(loaded: LoadedEngine, thread: EngineThread) -> EngineSeat:
    return EngineSeat(engine=loaded.engine, buckets=loaded.buckets, thread=thread)
