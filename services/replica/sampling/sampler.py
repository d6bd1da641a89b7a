"""Keeps rows of answered requests and writes them, window by window, beside the requests.

A request costs a look at a table and a subtraction; a row is copied only when it is taken.
Whatever fails here is counted, and no request fails for it.
"""

import asyncio
import hmac
import logging
import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from random import Random
from typing import NamedTuple

import numpy as np

from services.contracts.errors import StoreError
from services.contracts.kserve.tensors import Array, bytes_from_array
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.sampling_recipe import Sampling
from services.contracts.registry.registry import Registry
from services.contracts.text.moments import utc_now
from services.contracts.traffic.sampled_rows import SampledRow
from services.replica.request.infer_call import InferCall
from services.replica.request.signature import Signature, fits
from services.replica.sampling.reservoir import Reservoir
from services.telemetry import catalog
from services.telemetry.recorder import Recorder

logger = logging.getLogger(__name__)

# Sizes whose reservoir is known, and windows that may wait for a slow store.
_MAX_KNOWN = 1024
_MAX_WAITING = 4
_CLOSE_TIMEOUT_S = 5.0


class _Window(NamedTuple):
    begins_at: datetime
    ends_at: datetime
    reservoirs: Mapping[str, Reservoir]

    @property
    def rows(self) -> list[SampledRow]:
        return [row for each in self.reservoirs.values() for row in each.kept]


class Sampler:
    """Samples the requests of one replica; all but its thread is for the event loop."""

    def __init__(
        self,
        model: ModelVersion,
        sampling: Sampling,
        registry: Registry,
        recorder: Recorder,
        *,
        random: Random | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """Begin a window, and the thread that writes.

        Args:
            model: that is served.
            sampling: of its recipe.
            registry: takes the windows; its key makes hashes, else one of this process alone.
            recorder: counts rows that were written and that were lost.
            random: draws.
            clock: the time, UTC.
        """
        self._model = model
        self._sampling = sampling
        self._registry = registry
        self._recorder = recorder
        self._random = random or Random()  # noqa: S311 - it keeps no secret
        self._clock = clock
        self._signature = Signature.from_model(model)
        self._batch_dim = self._signature.batch_dim or ""
        self._kept_inputs = [n for n in self._signature.inputs if n not in sampling.drop]
        # Of each bucket an equal part: the rare ones are what calibration lacks.
        self._labels = [bucket.label for bucket in model.buckets] or ["any"]
        self._size = max(sampling.rows_per_window // len(self._labels), 1)
        self._max_row_bytes = sampling.max_mib * 2**20 / (self._size * len(self._labels))
        own_key = os.urandom(32)
        cipher = registry.cipher
        self._hash: Callable[[bytes], str] = (
            cipher.keyed_hash
            if cipher
            else lambda data: hmac.new(own_key, data, "sha256").hexdigest()
        )
        self._counts = Counter[str]()
        self._counting = threading.Lock()
        self._waiting: queue.Queue[_Window | None] = queue.Queue(_MAX_WAITING)
        self._begin()
        self._thread = threading.Thread(target=self._write_all, name="samples", daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        self._begins_at = self._clock()
        self._reservoirs: dict[str, Reservoir] = {}
        self._known: dict[tuple[int, ...], Reservoir] = {}

    def offer(self, calls: Iterable[InferCall]) -> None:
        """Take rows of calls that were answered, if it is their turn; never raises."""
        known = self._known
        batch_dim = self._batch_dim
        for call in calls:
            sizes = call.sizes
            key = tuple(sizes.values())
            reservoir = known.get(key) or self._learn(key, sizes)
            begin = reservoir.seen
            reservoir.seen = end = begin + sizes.get(batch_dim, 1)
            if reservoir.next_at < end:
                self._take(call, reservoir, begin)

    def _take(self, call: InferCall, reservoir: Reservoir, begin: int) -> None:
        """Take those rows of a call, whose first is number `begin`, that are next."""
        while reservoir.next_at < reservoir.seen:
            row = None
            try:
                row = self._row(call, reservoir.next_at - begin, reservoir.label)
            except Exception:
                logger.exception("a row was not sampled")
            if row is None:
                self._count("lost", 1)
            reservoir.take(row)

    def turn_over(self) -> None:
        """Hand a window that is over to the thread, and record counts; call it at intervals."""
        elapsed = (self._clock() - self._begins_at).total_seconds()
        # Also where the clock was set back: a window would last until it is there again.
        if not 0 <= elapsed < self._sampling.window_s:
            self._hand_over()
        with self._counting:
            counts = dict(self._counts)
            self._counts.clear()
        labels = {"model": self._signature.name, "version": self._signature.version}
        for outcome, number in counts.items():
            self._recorder.count(catalog.SAMPLES, number, outcome=outcome, **labels)

    async def close(self) -> None:
        """Write what was kept so far, for a few seconds at most."""
        self._hand_over()
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        with suppress(queue.Full):
            self._waiting.put(None, timeout=_CLOSE_TIMEOUT_S)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _learn(self, key: tuple[int, ...], sizes: Mapping[str, int]) -> Reservoir:
        buckets = self._model.buckets
        growing = self._signature.growing
        label = next((b.label for b in buckets if fits(b, sizes, growing)), self._labels[-1])
        if label not in self._reservoirs:
            self._reservoirs[label] = Reservoir(label, self._size, self._random)
        if len(self._known) < _MAX_KNOWN:
            self._known[key] = self._reservoirs[label]
        return self._reservoirs[label]

    def _row(self, call: InferCall, number: int, label: str) -> SampledRow | None:
        """One row of a call, copied; None of one that is too large."""
        hashed = self._sampling.hash
        rows = {name: self._of(name, call.inputs[name], number) for name in self._kept_inputs}
        kept = {name: row for name, row in rows.items() if name not in hashed}
        # Of numbers without a copy: where all rows are too large, each is looked at.
        sizes = (len(bytes_from_array(r)) if r.dtype.hasobject else r.nbytes for r in kept.values())
        if sum(sizes) > self._max_row_bytes:
            return None
        hashes = {n: self._hash(bytes_from_array(row)) for n, row in rows.items() if n in hashed}
        return SampledRow(label, {name: np.array(row) for name, row in kept.items()}, hashes)

    def _of(self, name: str, array: Array, number: int) -> Array:
        shape = self._signature.inputs[name].shape
        # An array too where a row is one string, of which numpy would give a `str`.
        return array[number, ...] if shape[:1] == (self._batch_dim,) else array

    def _hand_over(self) -> None:
        window = _Window(self._begins_at, self._clock(), self._reservoirs)
        self._begin()
        try:
            self._waiting.put_nowait(window)
        except queue.Full:
            self._count("lost", len(window.rows))

    def _count(self, outcome: str, number: int) -> None:
        with self._counting:
            self._counts[outcome] += number

    def _write_all(self) -> None:
        while window := self._waiting.get():
            try:
                is_written = self._write(window)
                self._count("written" if is_written else "lost", len(window.rows))
            except Exception as error:
                self._count("lost", len(window.rows))
                logger.warning("%d samples were lost: %s", len(window.rows), error)

    def _write(self, window: _Window) -> bool:
        """Write a window, unless its version was removed: its samples were deleted with it.

        After one without rows too, and one that a full store refused, what is beyond bounds is
        deleted: age counts without requests.
        """
        model = self._model
        if model.version not in self._registry.version_numbers(model.name):
            return False
        try:
            if window.rows:
                seen = {label: each.seen for label, each in window.reservoirs.items()}
                span = (window.begins_at, window.ends_at)
                self._registry.add_sample_window(model.name, model.version, span, window.rows, seen)
        finally:
            self._delete_beyond_bounds()
        return True

    def _delete_beyond_bounds(self) -> None:
        try:
            self._registry.delete_beyond_bounds(self._model.name, self._sampling)
        except StoreError as error:
            logger.warning(
                "samples beyond their bounds not deleted; retrying with the next window: %s", error
            )
