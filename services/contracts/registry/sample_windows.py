"""Samples of traffic in the store: windows of rows, apart from everything else.

samples/<model>/<end>-<random>.json    SampleWindow
samples/<model>/<end>-<random>.npz     its rows, sealed where the replica has a key

They alone are deleted while a model serves: by age, number and size, and by who asks for it.
Names have the time of the replica that wrote them, whose clock may be wrong: ages are the store's.
"""

import hashlib
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pydantic import Field

from services.contracts.errors import NotFoundError, StoreError
from services.contracts.model.document import Document
from services.contracts.model.sampling_recipe import Sampling
from services.contracts.registry.numbered_versions import check_model_name
from services.contracts.registry.records import RecordKeeper
from services.contracts.store.artifact_store import StoredObject, objects_now
from services.contracts.text.moments import timestamp, utc_now
from services.contracts.traffic.sample_cipher import SampleCipher, opened_samples

if TYPE_CHECKING:
    from services.contracts.traffic.sampled_rows import SampledRow

logger = logging.getLogger(__name__)


class SampleWindow(Document):
    """Rows that one replica kept of one span of time.

    Attributes:
        begins_at, ends_at: ISO 8601, UTC.
        seen, kept: rows by label of their bucket: those that were answered, those that are here.
        sha256, num_bytes: of the rows as they are stored.
        key_id: of the key that they are sealed with; "" in the clear.
    """

    model: str
    version: int
    begins_at: str
    ends_at: str
    seen: dict[str, int]
    kept: dict[str, int]
    sha256: str
    num_bytes: int = Field(ge=0)
    key_id: str = ""

    @property
    def num_samples(self) -> int:
        """Rows that are here."""
        return sum(self.kept.values())


Windows = Mapping[str, SampleWindow]


class TrafficRegistry(RecordKeeper):
    """Writes, finds, reads and deletes samples.

    Attributes:
        cipher: seals and opens them; None has them in the clear.
    """

    cipher: SampleCipher | None = None

    def add_sample_window(
        self,
        model: str,
        version: int,
        span: tuple[datetime, datetime],
        rows: "Sequence[SampledRow]",
        seen: Mapping[str, int],
    ) -> SampleWindow:
        """Write the rows of a window, then its document.

        Args:
            model: its name.
            version: that answered.
            span: from when to when.
            rows: at least one.
            seen: rows that were answered, by label of their bucket.
        """
        # Here, as most processes that open a registry need no numpy.
        from services.contracts.traffic.sampled_rows import bytes_from_rows

        data = bytes_from_rows(rows)
        data = self.cipher.sealed(data) if self.cipher else data
        labels = [row.bucket for row in rows]
        window = SampleWindow(
            model=model,
            version=version,
            begins_at=timestamp(span[0]),
            ends_at=timestamp(span[1]),
            seen=dict(seen),
            kept={label: labels.count(label) for label in sorted(set(labels))},
            sha256=hashlib.sha256(data).hexdigest(),
            num_bytes=len(data),
            key_id=self.cipher.key_id if self.cipher else "",
        )
        key = f"{_stem(model, span[1])}-{secrets.token_hex(6)}"
        self._store.create(f"{key}.npz", data)
        self._records.create(f"{key}.json", window)
        return window

    def sample_windows(self, model: str | None = None) -> dict[str, SampleWindow]:
        """All windows of a model, or of every one, by key: those of a model oldest first.

        One that cannot be read is left out: a newer replica's, or half of one.
        """
        return self._windows(self._records.keys("samples/" if model is None else _prefix(model)))

    def _windows(self, keys: Iterable[str]) -> dict[str, SampleWindow]:
        found = {}
        for key in keys:
            if key.endswith(".json"):
                try:
                    found[key] = self._records.read(key, SampleWindow)
                except NotFoundError:
                    continue  # a replica just deleted it
                except StoreError as error:
                    logger.warning("samples are left out: %s", error)
        return found

    def sampled_rows(self, windows: Windows) -> "list[SampledRow]":
        """The rows of windows, weighted by what was seen of their buckets.

        Raises:
            StoreError: rows are not those that were written, or not what their window counts, or
                are sealed with another key.
        """
        from services.contracts.traffic.sampled_rows import rows_from_bytes

        rows: list[SampledRow] = []
        for key, window in windows.items():
            with suppress(NotFoundError):
                stored = self._store.read(_rows_key(key))
                if hashlib.sha256(stored).hexdigest() != window.sha256:
                    raise StoreError(f"'{_rows_key(key)}' is not what its window names: delete it")
                opened = opened_samples(stored, self.cipher, f"'{key}'")
                try:
                    plain = rows_from_bytes(opened)
                    weights = {each: window.seen[each] / num for each, num in window.kept.items()}
                    if min(weights.values(), default=1) < 1:
                        raise ValueError("more rows than were seen")
                    rows += [row._replace(weight=weights[row.bucket]) for row in plain]
                except Exception as error:
                    why = f"'{key}' does not count its rows, or has none: delete it: {error!r}"
                    raise StoreError(why) from error
        return rows

    def delete_samples(self, keys: Iterable[str]) -> None:
        """Delete windows and rows, named by either; raises StoreError where that is not allowed."""
        for stem in dict.fromkeys(key.rpartition(".")[0] for key in keys):
            self._store.delete(f"{stem}.npz")
            self._store.delete(f"{stem}.json")

    def sample_keys(self, model: str) -> list[str]:
        """All that the store has of a model's samples, also what no window shows."""
        return self._store.list(_prefix(model))

    def samples_before(self, model: str, before: datetime) -> list[str]:
        """Keys of windows and rows that ended in a second before, also of what cannot be read."""
        return [key for key in self.sample_keys(model) if key < _stem(model, before)]

    def delete_beyond_bounds(self, model: str, sampling: Sampling) -> None:
        """Delete what is too old, too many or too large; raises StoreError where it cannot."""
        mark = f"{_stem(model, utc_now())}-{secrets.token_hex(6)}.npz"
        stored, now = objects_now(self._store, mark)
        windows = self._windows(each.key for each in stored)
        self.delete_samples(beyond_bounds(stored, windows, sampling, now))


def beyond_bounds(
    stored: Sequence[StoredObject], windows: Windows, sampling: Sampling, now: datetime
) -> list[str]:
    """Keys of what is too old, too many or too large, of one model.

    Args:
        stored: windows and rows.
        windows: those that can be read.
        sampling: the bounds.
        now: the time of the store, which says when each was written.
    """
    oldest = now - timedelta(hours=sampling.max_age_h)
    # Of rows alone, whose writer was killed: younger ones may be of one that writes its window now.
    oldest_alone = now - timedelta(seconds=sampling.window_s)
    keys = {each.key.removesuffix(".json") for each in stored}
    num_samples = num_bytes = 0
    gone = []
    for each in sorted(stored, key=lambda each: each.modified_at, reverse=True):
        num_samples += windows[each.key].num_samples if each.key in windows else 0
        num_bytes += each.num_bytes
        is_within = num_samples <= sampling.max_samples and num_bytes <= sampling.max_mib * 2**20
        is_alone = each.key.endswith(".npz") and each.key.removesuffix(".npz") not in keys
        if not is_within or each.modified_at < (max(oldest, oldest_alone) if is_alone else oldest):
            gone.append(each.key)
    return gone


def ended_windows(windows: Windows) -> Windows:
    """Those that are over by this host's clock: that of another may be ahead by years."""
    now = timestamp()
    return {key: window for key, window in windows.items() if window.ends_at <= now}


def _prefix(model: str) -> str:
    check_model_name(model)
    return f"samples/{model}/"


def _stem(model: str, end: datetime) -> str:
    return f"{_prefix(model)}{end:%Y%m%dT%H%M%S}"


def _rows_key(key: str) -> str:
    return key.removesuffix(".json") + ".npz"
