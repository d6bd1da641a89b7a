"""Answers that were given before: an interceptor that models opt into with their recipe.

The key is the model version and the request without its id, so that it does not depend on engines:
an answer stays while engines come and go, and ends with the version, which a change of the
master or the recipe makes a new one of.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, Final

from google.protobuf.message import DecodeError

from services.contracts.external.external_model import ExternalModel
from services.contracts.kserve.request_wire import split_request
from services.contracts.model.manifest import ModelVersion
from services.contracts.transport.frames import Payload
from services.gateway.pipeline.inference import InferenceCall, InferenceHandler
from services.gateway.pipeline.request_head import request_head_from_bytes
from services.gateway.routing.endpoints import EndpointSet
from services.gateway.routing.pool import Pool
from services.gateway.routing.table import RoutingTable
from services.pb import open_inference_v2_pb2 as pb
from services.telemetry import catalog
from services.telemetry.recorder import Recorder

# One answer shall not push everything else out.
_LARGEST_SHARE: Final = 4
# What Python keeps beside an entry's bytes: key, node of the order, two objects.
ENTRY_OVERHEAD_BYTES: Final = 300
# A field with nothing in it, which protobuf leaves out when it writes.
_EMPTY_ID: Final = b"\x1a\x00"
# What a parser makes of bytes can be many times their size: only a small head is put into the one
# order that all clients' heads have.
_MAX_ORDERED_BYTES: Final = 4096
# A digest of more takes a millisecond and longer, for which other requests would wait.
_MAX_ON_LOOP_BYTES: Final = 1 << 20


class AnswerStore:
    """Answers by key; the least recently used go when a bound on bytes is reached."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self._answers: OrderedDict[bytes, Payload] = OrderedDict()

    def get(self, key: bytes) -> Payload | None:
        """The answer, which becomes the most recently used one."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def put(self, key: bytes, answer: Payload) -> None:
        """Keep an answer, unless it alone would take a good part of the memory."""
        if len(answer) + ENTRY_OVERHEAD_BYTES > self._max_bytes // _LARGEST_SHARE:
            return
        former = self._answers.pop(key, None)
        if former is not None:
            self.num_bytes -= len(former) + ENTRY_OVERHEAD_BYTES
        self._answers[key] = answer
        self.num_bytes += len(answer) + ENTRY_OVERHEAD_BYTES
        while self.num_bytes > self._max_bytes:
            _, oldest = self._answers.popitem(last=False)
            self.num_bytes -= len(oldest) + ENTRY_OVERHEAD_BYTES


class CachedInference:
    """Answers from memory where the model's recipe allows it."""

    def __init__(
        self, inner: InferenceHandler, endpoints: EndpointSet, recorder: Recorder, max_bytes: int
    ) -> None:
        """Begin with an empty cache.

        Args:
            inner: answers what is not cached.
            endpoints: the routing table has the models whose recipe allows a cache.
            recorder: counts hits and misses.
            max_bytes: of all answers that are kept.
        """
        self._inner = inner
        self._endpoints = endpoints
        self._recorder = recorder
        self._store = AnswerStore(max_bytes)
        self._counts: dict[tuple[str, str], pb.ModelStatistics] = {}
        self._table: RoutingTable | None = None
        self._cached: frozenset[str] = frozenset()

    def answer(self, call: InferenceCall) -> Coroutine[Any, Any, Payload]:
        """The answer that was given before, or the one that is given now; raises as within."""
        if self._endpoints.table is not self._table:
            self._take_over(self._endpoints.table)
        # Where no model has a cache it is no part of a request's time.
        return self._answer_cached(call) if self._cached else self._inner.answer(call)

    async def _answer_cached(self, call: InferenceCall) -> Payload:
        head = request_head_from_bytes(call.body)
        if head.model_name not in self._cached:
            return await self._inner.answer(call)
        begin_ns = time.monotonic_ns()
        table = self._endpoints.table
        pool = table.pools.get((head.model_name, head.model_version))
        if pool is not None and pool.split is not None:
            # Answered here or not, it is the same draw that counts.
            pool = call.pool = pool.drawn(call.session)
        # A request that cannot be served or read is refused by the next interceptor.
        if pool is None:
            return await self._inner.answer(call)
        document = table.served(pool.model, pool.version).document
        if isinstance(document, ExternalModel) or not document.recipe.response_cache:
            return await self._inner.answer(call)
        if len(call.body) > _MAX_ON_LOOP_BYTES:
            key = await asyncio.to_thread(_key, document, call.body)
        else:
            key = _key(document, call.body)
        if key is None:
            return await self._inner.answer(call)
        known = self._store.get(key)
        self._count(pool, time.monotonic_ns() - begin_ns, is_hit=known is not None)
        if known is None:
            answer = await self._inner.answer(call)
            # A request without a version that was sent again may have found another one.
            if (call.model, call.version) == (pool.model, pool.version):
                self._store.put(key, answer)
            return answer
        call.model = pool.model
        call.version = pool.version
        return with_id(known, head.request_id)

    def _count(self, pool: Pool, took_ns: int, *, is_hit: bool) -> None:
        metric = catalog.CACHE_HITS if is_hit else catalog.CACHE_MISSES
        self._recorder.count(metric, model=pool.model, version=pool.version)
        stats = self.statistics(pool.model, int(pool.version)).inference_stats
        if is_hit:
            # No replica sees it. As the protocol says: cache hits are in `success` and `queue`,
            # where they wait for nothing, and not in `inference_count` and the compute steps.
            _add(stats.success, took_ns)
            _add(stats.queue, 0)
        _add(stats.cache_hit if is_hit else stats.cache_miss, took_ns)

    def statistics(self, model: str, version: int) -> pb.ModelStatistics:
        """What requests of a version found here so far."""
        return self._counts.setdefault((model, str(version)), pb.ModelStatistics())

    def forget(self, model: str, version: str) -> None:
        """Drop what was counted of a version."""
        self._counts.pop((model, version), None)

    def _take_over(self, table: RoutingTable) -> None:
        self._table = table
        self._cached = frozenset(
            name
            for name, versions in table.view.models.items()
            if any(
                served.document.recipe.response_cache
                for served in versions.values()
                if not isinstance(served.document, ExternalModel)
            )
        )


def with_id(answer: Payload, request_id: str) -> bytes:
    """A serialised answer with another request's id: of a field that repeats, the last counts."""
    field = pb.ModelInferResponse(id=request_id).SerializeToString()
    return b"".join((answer, field or _EMPTY_ID))


def _add(duration: pb.StatisticDuration, took_ns: int) -> None:
    duration.count += 1
    duration.ns += took_ns


def _key(document: ModelVersion, body: Payload) -> bytes | None:
    """A digest of version and question, without id and name of the version; None without a head."""
    head, _, raw_contents = split_request(body)
    if len(head) <= _MAX_ORDERED_BYTES:
        try:
            request = pb.ModelInferRequest.FromString(head)
        except DecodeError:
            return None
        request.ClearField("model_version")
        head = request.SerializeToString(deterministic=True)
    key = hashlib.blake2b(digest_size=32)
    key.update(f"{document.name}\n{document.version}\n{document.master.digest}\n".encode())
    parts: list[bytes | memoryview] = [head, *raw_contents]
    for part in parts:
        key.update(len(part).to_bytes(8))
        key.update(part)
    return key.digest()
