"""`smelt samples`: what replicas kept of requests, and how far that is from calibration."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from services.cli.output.show import show
from services.cli.registry import open_registry, open_registry_to_publish
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError, NotFoundError
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry
from services.contracts.registry.sample_windows import SampleWindow
from services.contracts.text.moments import timestamp
from services.contracts.text.text_table import Table
from services.contracts.text.words import counted, readable_size, readable_time

_SHARES = {"least": 0.0, "p1": 0.01, "p50": 0.5, "p90": 0.9, "p99": 0.99, "largest": 1.0}
_OPT_IN = "samples are kept where the recipe has `sampling: {}`"


def run_samples(settings: CliSettings, name: str) -> None:
    """Print what there is of a model.

    Raises:
        NotFoundError: no such model, or no samples of it.
        StoreError: its calibration set is encrypted with a key that is not given.
    """
    registry = open_registry(settings)
    document = samples_document(registry, registry.model_version(name))
    show(document, _text(document))


def run_samples_delete(settings: CliSettings, name: str, before: str) -> None:
    """Delete samples of a model.

    Args:
        settings: of the command line.
        name: of the model.
        before: only of windows that ended before this moment, in ISO 8601; "" for all.

    Raises:
        InvalidRequestError: that is no moment, or no name of a model.
        NotFoundError: there is no such model, and nothing of it to delete.
        StoreError: the store allows no delete.
    """
    registry = open_registry(settings)
    limit = _moment(before) if before else ""
    if not registry.sample_keys(name):
        # A wrong name must not look as if its samples were gone.
        registry.require_version(name)
    windows = registry.sample_windows(name)
    gone = {key: each for key, each in windows.items() if not limit or each.ends_at < limit}
    rows = registry.samples_before(name, datetime.fromisoformat(limit)) if limit else []
    registry.delete_samples([*gone, *rows] if limit else registry.sample_keys(name))
    left = sum(window.num_samples for key, window in windows.items() if key not in gone)
    num = sum(window.num_samples for window in gone.values())
    document = {"model": name, "num_deleted": num, "num_left": left}
    show(document, [f"{name}: {counted(num, 'sample')} deleted, {left} left"])


def run_samples_calibrate(settings: CliSettings, name: str) -> None:
    """Publish a version that is calibrated with the newest samples.

    Raises:
        InvalidRequestError: the recipe has no `calibration: traffic`, or samples are too few.
        StoreError: the present calibration set is encrypted with a key that is not given.
    """
    from services.cli.fleet.control_client import notify_fleet
    from services.cli.models.listing import version_document
    from services.contracts.traffic.recalibration import publish_calibrated

    registry = open_registry_to_publish(settings, must_exist=True)
    version = publish_calibrated(registry, registry.model_version(name))
    then = "follow it: smelt events" if notify_fleet(settings) else "build its engines: smelt build"
    source = version.traffic
    words = f"{source.num_samples} samples, {source.num_held_out} held out" if source else ""
    text = f"{name} version {version.version}: calibrated with {words}; {then} {name}"
    show(version_document(version), [text])


def samples_document(registry: Registry, version: ModelVersion) -> dict[str, Any]:
    """Everything about the samples of a model, as plain data.

    Args:
        registry: with the key.
        version: whose inputs name them, and whose calibration they are compared with.

    Raises:
        NotFoundError: there are none.
        StoreError: they cannot be opened.
    """
    from services.contracts.traffic.drift import drifts, features
    from services.contracts.traffic.fitting_rows import is_finite, windows_for
    from services.contracts.traffic.recalibration import calibrated_rows, traffic_state

    windows = registry.sample_windows(version.name)
    if not windows:
        sampling = version.recipe.sampling
        when = sampling and f"its replicas write what they kept every {sampling.window_s:g} s"
        raise NotFoundError(f"no samples of {version.name} are in the store; {when or _OPT_IN}")
    read, left_out = windows_for(registry, version)
    sampled = registry.sampled_rows(read)
    rows = [row for row in sampled if is_finite(row.arrays)]
    if num := len(sampled) - len(rows):
        left_out += f"; left out: {counted(num, 'row')} with NaN or infinite values"
    found = features([row.arrays for row in rows], version)
    # None of a version without a calibration set; of one with traffic only what came since.
    calibrated, sealed = calibrated_rows(registry, version)
    before = features(calibrated, version)
    asked = version.recipe.calibration
    state = traffic_state(registry, version) if asked and asked.traffic else None
    kept: Sequence[SampleWindow] = list(windows.values())
    hashed = {name for row in rows for name in row.hashes}
    return {
        "model": version.name,
        "version": version.version,
        "num_windows": len(kept),
        "num_samples": sum(each.num_samples for each in kept),
        "left_out": "; ".join(filter(None, (left_out.removeprefix("; "), sealed))),
        "num_bytes": sum(each.num_bytes for each in kept),
        "begins_at": min(each.begins_at for each in kept),
        "ends_at": max(each.ends_at for each in kept),
        "keys": sorted({each.key_id for each in kept}),
        "features": {what: _quantiles(values) for what, values in sorted(found.items())},
        "num_different": {n: len({row.hashes.get(n) for row in rows}) for n in sorted(hashed)},
        "drift": [d._asdict() for d in (state.drifts if state else drifts(before, found))],
        "calibration": state and {"is_due": state.is_due, "words": state.words},
    }


def _quantiles(values: Sequence[Any]) -> dict[str, float]:
    import numpy as np

    every = np.concatenate(values)
    return {name: float(np.quantile(every, share)) for name, share in _SHARES.items()}


def _moment(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequestError(
            f"--before {text}: expected a day or moment, as in 2026-11-01 or 2026-11-01T12:00"
        ) from error
    return timestamp(moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC))


def _text(document: dict[str, Any]) -> Iterator[str | Table]:
    sealed = [key for key in document["keys"] if key]
    how_many = counted(document["num_samples"], "sample")
    windows = counted(document["num_windows"], "window")
    yield (
        f"{document['model']}: {how_many} in {windows}, {readable_time(document['begins_at'])} to "
        f"{readable_time(document['ends_at'])}, {readable_size(document['num_bytes'])}, "
        + (f"encrypted with key {', '.join(sealed)}" if sealed else "not encrypted")
    )
    rows = [
        (what, *(f"{value:g}" for value in quantiles.values()))
        for what, quantiles in document["features"].items()
    ]
    yield Table("Samples", ("what", *_SHARES), rows)
    if state := document["calibration"]:
        fix = f"; calibrate it: smelt samples calibrate {document['model']}"
        yield f"version {document['version']}: {state['words']}{fix if state['is_due'] else ''}"
    if document["left_out"] not in (state["words"] if state else ""):
        yield f"version {document['version']}: {document['left_out']}"
    for name, number in document["num_different"].items():
        yield f"{name} is hashed: {number} different"
    if not document["drift"] and not document["calibration"]:
        yield f"version {document['version']} has no calibration set to compare with"
    if not document["drift"]:
        return
    yield Table(
        f"Drift from the calibration of version {document['version']} (Kolmogorov-Smirnov)",
        ("what", "distance", "noise"),
        [(d["what"], f"{d['distance']:.3f}", f"{d['noise']:.3f}") for d in document["drift"]],
    )
