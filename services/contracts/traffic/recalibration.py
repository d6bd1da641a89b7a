"""Calibrates a model version anew, with rows of its own traffic.

A row's digest decides what it is for, so that a row that was calibrated with is never held out
for proofs, whenever it is met again. Rows that came after the last calibration are taken: those
before are of requests that may come no more.
"""

import hashlib
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from services.contracts.errors import InvalidRequestError, SealedError
from services.contracts.kserve.tensors import bytes_from_array
from services.contracts.model.manifest import ModelVersion, TrafficSource
from services.contracts.registry.registry import Registry
from services.contracts.registry.sample_windows import Windows, ended_windows
from services.contracts.traffic.drift import Drift, drifts, features, masks_of
from services.contracts.traffic.fitting_rows import Row, fitting_rows, stacked_rows, windows_for

_MAX_CALIBRATED = 256
_MAX_HELD_OUT = 64
_HELD_OUT_OF = 4


class TrafficState(NamedTuple):
    """What the samples say of a version that is calibrated with traffic.

    Attributes:
        num_samples: different rows since it was calibrated.
        drifts: their distances to what it was calibrated with.
        is_due: it is to be calibrated anew, or for the first time.
        words: why, or why not.
    """

    num_samples: int
    drifts: list[Drift]
    is_due: bool
    words: str


def traffic_state(registry: Registry, version: ModelVersion) -> TrafficState:
    """Look at the samples of a version whose recipe has `calibration: traffic`.

    A version whose calibration another key sealed is due, as nothing can be compared with it.
    Raises InvalidRequestError where the recipe has no `calibration: traffic`.
    """
    calibration = version.recipe.calibration
    asked = calibration.traffic if calibration else None
    if asked is None:
        raise InvalidRequestError(f"the recipe of {version.name} has no `calibration: traffic`")
    rows, _, left_out = _recent(registry, version)
    if len(rows) < asked.min_samples:
        since = " since its calibration" if version.traffic else ""
        words = f"{len(rows)} different samples{since}, {asked.min_samples} wanted to calibrate"
        words += left_out
        return TrafficState(len(rows), [], is_due=False, words=words)
    if version.calibration is None:
        words = f"{len(rows)} samples are there to calibrate with for the first time{left_out}"
        return TrafficState(len(rows), [], is_due=True, words=words)
    calibrated, sealed = calibrated_rows(registry, version)
    if sealed:
        words = f"{sealed}; {len(rows)} samples are there to calibrate anew with{left_out}"
        return TrafficState(len(rows), [], is_due=True, words=words)
    before = features(calibrated, version)
    found = drifts(before, features(rows, version))
    moved = [d for d in found if d.distance > max(asked.max_drift, d.noise)]
    words = f"no distance of {len(rows)} samples is beyond max_drift {asked.max_drift:g}"
    if moved:
        each = ", ".join(f"{d.what} {d.distance:.2f} (noise {d.noise:.2f})" for d in moved)
        words = f"requests are no longer what it was calibrated with: {each}, at most "
        words += f"{asked.max_drift:g} wanted"
    return TrafficState(len(rows), found, is_due=bool(moved), words=words + left_out)


def calibrated_rows(registry: Registry, version: ModelVersion) -> tuple[list[Row], str]:
    """Rows [...] of a version's calibration set; none, and why, where another key sealed them."""
    try:
        return list(registry.calibration_rows(version)), ""
    except SealedError as error:
        return [], str(error)


def publish_calibrated(registry: Registry, version: ModelVersion) -> ModelVersion:
    """Publish the next version: the same, calibrated and proven with its newest samples.

    Raises:
        InvalidRequestError: there are too few, or none to calibrate with or to hold out.
    """
    state = traffic_state(registry, version)
    rows, windows, _ = _recent(registry, version)
    calibrating, held_out = _parted(rows)
    if not state.is_due and not state.drifts:
        raise InvalidRequestError(f"{version.name} cannot be calibrated: {state.words}")
    if not calibrating or not held_out:
        raise InvalidRequestError(
            f"{version.name} cannot be calibrated: of {len(rows)} different samples "
            f"{len(calibrating)} are to calibrate with and {len(held_out)} to hold out for proofs, "
            "as their digests say; wanted some of each: wait for more samples"
        )
    with tempfile.TemporaryDirectory(prefix="smelt-samples-") as folder:
        refs = [
            registry.put_samples(stacked_rows(each, version), Path(folder))
            for each in (calibrating, held_out)
        ]
    source = TrafficSource(
        begins_at=min(window.begins_at for window in windows.values()),
        ends_at=max(window.ends_at for window in windows.values()),
        num_samples=len(calibrating),
        held_out=refs[1],
        num_held_out=len(held_out),
    )
    return registry.add_changed_version(version, {"calibration": refs[0], "traffic": source})


def _recent(registry: Registry, version: ModelVersion) -> tuple[list[Row], Windows, str]:
    """Different rows since the last calibration that fit the version; and what was left out."""
    since = version.traffic.ends_at if version.traffic else ""
    windows, left_out = windows_for(registry, version)
    windows = {key: each for key, each in ended_windows(windows).items() if each.ends_at > since}
    sampled = registry.sampled_rows(windows)
    found = {_digest(row): row for row in fitting_rows(sampled, version)}
    usual = _stackable([found[digest] for digest in sorted(found)], registry, version)
    if num := len(found) - len(usual):
        left_out += f"; left out: {num} of other lengths, as no input is a mask to pad by"
    return usual, windows, left_out


def _stackable(rows: list[Row], registry: Registry, version: ModelVersion) -> list[Row]:
    """Rows that one array can hold: all where a mask lets them be padded, else of one shape.

    The most common one; but the calibrated rows' own until another has twice as many, as of lengths
    that are equally common another would be ahead each time.
    """
    if masks_of(version.recipe):
        return rows
    counts = Counter(map(_shape, rows))
    for row in calibrated_rows(registry, version)[0][:1]:
        counts[_shape(row)] *= 2
    usual = max(counts, key=lambda shape: counts[shape], default=())
    return [row for row in rows if _shape(row) == usual]


def _shape(row: Row) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted((name, array.shape) for name, array in row.items()))


def _digest(row: Row) -> str:
    parts = [(name, array.shape, bytes_from_array(array)) for name, array in sorted(row.items())]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _parted(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Rows to calibrate with, and those to prove with; in both a draw, as digests are."""
    is_held = [int(_digest(row)[-8:], 16) % _HELD_OUT_OF == 0 for row in rows]
    calibrating = [row for row, held in zip(rows, is_held, strict=True) if not held]
    held_out = [row for row, held in zip(rows, is_held, strict=True) if held]
    return calibrating[:_MAX_CALIBRATED], held_out[:_MAX_HELD_OUT]
