"""One replica: engine, batcher, data port and control line, composed. Knows no Ray.

A request's life cycle: the data server hands over its bytes, `infer` decodes and checks them,
the batcher joins them with others, the engine worker runs the batch, `infer` encodes the
answer. A swap of engines happens beside that and takes effect between two batches.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from services.contracts.errors import EngineError, NotReadyError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.text_input import TEXT
from services.contracts.selection.selection import FallbackReason
from services.contracts.text.moments import timestamp
from services.contracts.transport.frames import Payload
from services.pb import fleet_v1_pb2 as fleet
from services.replica.batching.batch_report import BatcherTimes, BatchReport
from services.replica.batching.batcher import Batcher, Outputs
from services.replica.batching.collate import JoinRules
from services.replica.closing import close_all
from services.replica.engine.executor import EngineExecutor, EngineThread
from services.replica.engine.loaded_engine import LoadedEngine
from services.replica.engine.manager import EngineManager
from services.replica.engine.proof import EngineProof
from services.replica.engine.samples import edge_inputs
from services.replica.engine.standby import Standby
from services.replica.engine.swaps import EngineSwaps
from services.replica.engine.worker import EngineWorker
from services.replica.reporting.replica_metrics import ReplicaMetrics
from services.replica.reporting.request_spans import RequestSpans
from services.replica.reporting.statistics import Statistics
from services.replica.request.codec import call_from_request, call_from_tensors
from services.replica.request.infer_call import InferCall, held_bytes
from services.replica.request.response import response_from_outputs
from services.replica.request.signature import Signature
from services.replica.request.text_thread import TextThread
from services.replica.request.tokeniser import Tokeniser
from services.replica.sampling.sampler import Sampler
from services.telemetry.recorder import Recorder

logger = logging.getLogger(__name__)

# An export may take 15 minutes and another process's compile 10: what takes longer than this may
# hang, and no thread can be ended.
_LOAD_LIMIT_S = 3600.0


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
        manager: EngineManager,
        recorder: Recorder,
        *,
        on_change: Callable[[], None] = lambda: None,
        standby_s: float = 0.0,
        first_load_limit_s: float = _LOAD_LIMIT_S,
        load_limit_s: float = _LOAD_LIMIT_S,
        spans: RequestSpans | None = None,
        tokeniser: Tokeniser | None = None,
        sampler: Sampler | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Compose the parts; `load` makes them serve.

        Args:
            model: what to serve.
            device: where.
            manager: loads engines.
            recorder: metrics.
            on_change: called when `state` or `loaded` differ from before.
            standby_s: how long an engine that was replaced stays loaded, to be returned to.
            first_load_limit_s: after which `load` counts as failed.
            load_limit_s: the same of what is loaded or compiled later.
            spans: of the requests that are traced; None traces none.
            tokeniser: of a version that takes text.
            sampler: keeps rows of requests; None keeps none.
            clock: monotonic seconds; deadlines are on it.
        """
        self.signature = Signature.from_model(model)
        self.statistics = Statistics(self.signature.name, self.signature.version)
        self.state = fleet.REPLICA_STATE_LOADING
        self.state_since = timestamp()
        self.loaded: LoadedEngine | None = None
        self._model = model
        self._device = device
        self._manager = manager
        self._metrics = ReplicaMetrics(
            recorder, self.signature.name, self.signature.version, device.generation
        )
        self._rules = JoinRules.from_model(model, self.signature)
        self._on_change = on_change
        self._spans = spans
        self._sampler = sampler
        self._clock = clock
        self._worker: EngineWorker | None = None
        self._proof: EngineProof | None = None
        self._batcher: Batcher | None = None
        self._standby = Standby(standby_s)
        self._swaps: EngineSwaps | None = None
        self._first_load_limit_s = first_load_limit_s
        self._load_limit_s = load_limit_s
        self._tokeniser = tokeniser
        self._texts: TextThread | None = None

    @property
    def num_unanswered(self) -> int:
        """Requests that were accepted and not yet answered."""
        return self._batcher.num_unanswered if self._batcher else 0

    @property
    def batcher_times(self) -> BatcherTimes:
        """How long batches ran since it loaded."""
        return self._batcher.times if self._batcher else BatcherTimes()

    @property
    def is_loop_held(self) -> bool:
        """Whether an engine holds the event loop longer than a run may take; for any thread."""
        return self._worker is not None and self._worker.is_loop_held

    def show_now(self) -> None:
        """Record what is true at this moment, end windows of samples; call it at intervals."""
        batcher = self._batcher
        if self._sampler:
            self._sampler.turn_over()
        self._metrics.show_now(
            batcher.num_waiting if batcher else 0, batcher.queue.used if batcher else 0.0
        )

    async def load(self) -> None:
        """Choose, load and warm an engine; the replica can serve afterwards.

        Raises:
            EngineError: not even the fallback could be loaded, or it takes too long.
        """
        thread = EngineThread()
        loaded = await self._first_loaded(thread)
        executor = EngineExecutor(loaded, thread)
        self._worker = EngineWorker(
            executor, self._standby, on_return=self._returned, clock=self._clock
        )
        edges = partial(edge_inputs, self._model)
        self._proof = EngineProof(self._worker, edges, clock=self._clock)
        self._batcher = Batcher(
            self._worker,
            self._rules,
            self._model.recipe.batching,
            on_batch=self._record_batch,
            on_dropped=self._metrics.record_dropped,
            clock=self._clock,
        )
        if self._tokeniser:
            check = partial(call_from_tensors, signature=self.signature)
            self._texts = TextThread(self._tokeniser, check, self._batcher)
        self._batcher.start()
        self._take_over(loaded)
        self._swaps = EngineSwaps(
            self._manager,
            self._worker,
            self._batcher,
            self._standby,
            loaded=self._engine_in_use,
            take_over=self._take_over,
            explain=self._show_engine,
            load_limit_s=self._load_limit_s,
        )

    async def _first_loaded(self, thread: EngineThread) -> LoadedEngine:
        try:
            async with asyncio.timeout(self._first_load_limit_s) as timer:
                return await thread.call_or_end(self._manager.load)
        except TimeoutError:
            if not timer.expired():
                raise
        words = f"it takes longer than {self._first_load_limit_s:.0f} s to load"
        self._manager.refuse_first(words)
        raise EngineError(f"model '{self.signature.name}': {words}; the next replica tries another")

    def infer(
        self, payload: Payload, deadline_s: float | None = None, trace: str = ""
    ) -> asyncio.Future[bytes]:
        """Answer a serialised ModelInferRequest with a serialised ModelInferResponse.

        Cancel the future when the answer is no longer wanted.

        Args:
            payload: the request's bytes, untouched.
            deadline_s: time on this replica's clock after which the answer is not wanted.
            trace: the client's id of the request, with its trace when that is kept.

        Raises:
            InvalidRequestError, UnsupportedFeatureError, NotFoundError: see codec.
            OverloadedError, DeadlineExceededError, NotReadyError, EngineError: see batcher.
        """
        began_s = self._clock()
        try:
            return self._answer(payload, deadline_s, began_s, trace)
        except Exception as error:
            self._count_failure(began_s, error)
            raise

    async def reselect_engine(self) -> bool:
        """Swap a better engine in, or what may serve in place of one that may not any longer.

        Returns whether the engine changed; see `EngineSwaps.reselect`.
        """
        return self._swaps is not None and await self._swaps.reselect()

    def set_state(self, state: fleet.ReplicaState) -> None:
        """Change the state that reports show."""
        self.state = state
        self.state_since = timestamp()
        self._on_change()

    async def drain(self) -> None:
        """Take no new requests and wait for the accepted ones."""
        self.set_state(fleet.REPLICA_STATE_DRAINING)
        if self._batcher:
            await self._batcher.drain()

    async def close(self) -> None:
        """Stop the batcher and release the engine; a second call does nothing."""
        batcher = self._batcher
        worker = self._worker
        proof = self._proof
        swaps = self._swaps
        sampler = self._sampler
        self._batcher = self._worker = self._proof = self._swaps = self._sampler = None
        self._metrics.add_sums()
        if worker:
            # Not awaited here: an engine that hangs cannot be closed.
            self._standby.close_soon(worker.executor)
        await close_all(
            *([swaps.end] if swaps else []),
            *(part.close for part in (proof, batcher, self._texts, sampler) if part),
            self._standby.drop,
        )

    async def check_health(self) -> None:
        """Raise EngineError when this replica cannot answer any more and must be replaced."""
        batcher = self._batcher
        worker = self._worker
        proof = self._proof
        if batcher is None or worker is None or proof is None:
            return
        if not batcher.is_running:
            raise EngineError("the batcher's task ended; the replica must be restarted")
        try:
            await worker.check_hang()
            # Clients may send what every engine fails on; that alone must not end a replica.
            await proof.check()
        except EngineError as error:
            self.blame_engine(str(error))
            raise

    def blame_engine(self, words: str) -> None:
        """Have the process that replaces this one begin with another engine; for any thread."""
        if self.loaded and self.loaded.digest:
            self._manager.mark_failed(self.loaded.digest, f"failed in service: {words}")

    def _answer(
        self, payload: Payload, deadline_s: float | None, began_s: float, trace: str
    ) -> asyncio.Future[bytes]:
        if self._batcher is None:
            raise NotReadyError(f"model '{self.signature.name}' is loading or was stopped here")
        self._batcher.admit()
        call = call_from_request(payload, self.signature, self._batcher.admit)
        finish: Callable[[InferCall, Outputs], bytes] = partial(self._finished, began_s)
        on_failure: Callable[[Exception | None], None] = partial(self._count_failure, began_s)
        if self._spans is not None:
            finish, on_failure = self._spans.watched(trace, finish, on_failure)
        texts = self._texts if TEXT in call.inputs else None
        answer = self._batcher.submit(
            call,
            finish,
            deadline_s,
            num_bytes=held_bytes(call.inputs, len(payload)),
            on_failure=on_failure,
            is_ready=texts is None,
        )
        if texts:
            texts.wake()
        return answer

    def _finished(self, began_s: float, call: InferCall, outputs: Outputs) -> bytes:
        response = response_from_outputs(call, outputs, self.signature)
        self.statistics.record_success(self._clock() - began_s)
        return response

    def _count_failure(self, began_s: float, error: Exception | None = None) -> None:
        if isinstance(error, NotReadyError):
            return  # the gateway asks another replica, which counts it
        self.statistics.record_failure(self._clock() - began_s)

    def _engine_in_use(self) -> LoadedEngine:
        assert self.loaded is not None, "asked only after an engine was loaded"
        return self.loaded

    def _take_over(self, loaded: LoadedEngine) -> None:
        self._metrics.engine_changed(loaded)
        self._show_engine(loaded)

    def _show_engine(self, loaded: LoadedEngine) -> None:
        self.loaded = loaded
        self._on_change()

    def _returned(self, spare: EngineExecutor, bad_executor: EngineExecutor, words: str) -> None:
        """The engine before serves again, as the present one failed in service."""
        bad = self._engine_in_use()
        logger.error(
            "engine %s failed in service; rolled back to the previous one: %s",
            bad.digest or bad.kind,
            words,
        )
        self._manager.mark_failed(bad.digest, f"failed in service: {words}")
        self._standby.close_soon(bad_executor)
        detail = f"rolled back to: engine {bad.digest[:12] or bad.kind} failed in service: {words}"
        reason = spare.loaded.fallback_reason
        if reason and bad.digest:
            reason = FallbackReason.LOAD_FAILED
        self._metrics.engine_returned(bad)
        loaded = replace(spare.loaded, detail=detail, fallback_reason=reason)
        if loaded.is_interim and not bad.digest:
            loaded = loaded.after_failure(f"failed in service: {words}")
        self._take_over(loaded)

    def _record_batch(self, report: BatchReport) -> None:
        self.statistics.record_batch(report)
        self._metrics.record_batch(report)
        if self._spans is not None:
            self._spans.record_batch(report, self.loaded)
        if self._sampler is not None and report.times:
            self._sampler.offer(report.calls)
