"""What is being built or proven now: from the leases of planned keys, wherever workers are."""

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from services.contracts.builds.build_lease import BuildLease
from services.contracts.registry.registry import Registry
from services.contracts.text.durations import readable_duration
from services.contracts.text.moments import utc_now
from services.contracts.text.text_table import Table
from services.contracts.text.words import readable_time

_COLUMNS = ("generation", "kind", "stage", "stage for", "in all", "engine", "by", "last line")
_QUEUED = "queued"
_WIDE = ("stage for", "by", "last line")
_STAGES = {
    "wait": "waiting",
    "open": "opening",
    "build": "building",
    "prove": "proving",
    "benchmark": "timing",
    "publish": "publishing",
}
# Of a lease: it is renewed after a third of it, and clocks differ a little.
_SILENT_SHARE = 0.67


def running_builds(registry: Registry, names: Sequence[str]) -> list[dict[str, Any]]:
    """Builds of the newest versions of models, each as plain data.

    A worker that was killed on another machine is shown until its lease has expired by any clock.
    """
    return [build for name in names for build in _builds_of(registry, name)]


def stage_document(
    registry: Registry, digest: str, queued: dict[str, Any] | None
) -> dict[str, Any] | None:
    """What is done now for a key that is not proven, and since when; None where nothing is.

    Args:
        registry: on the store.
        digest: of the key.
        queued: its build, as `queued_builds` has it; None without one.
    """
    if lease := _held(registry, digest, utc_now()):
        name = stage_name(lease.stage)
        words = f"{name} since {readable_time(lease.stage_since)}, by {lease.holder_process}"
        words += f": {lease.line}" if lease.stage == "wait" and lease.line else ""
        return {"name": name, "since": lease.stage_since, "words": words}
    if queued is None:
        return None
    since = queued["started_at"] or queued["queued_at"]
    words = f"no worker has it yet: the model's build {queued['place']}"
    return {"name": _QUEUED, "since": since, "words": words}


def is_held(stage: dict[str, Any] | None) -> bool:
    """Whether a worker is at a key, by its `stage_document`."""
    return stage is not None and stage["name"] != _QUEUED


def stage_name(stage: str) -> str:
    """A worker's stage in the words of tables and events."""
    return _STAGES.get(stage, stage or "beginning")


def running_builds_text(builds: Sequence[dict[str, Any]]) -> list[Table]:
    """A table for each model of which something is being built."""
    return [
        Table(f"Being built for {name}", _COLUMNS, [_row(build) for build in group], _WIDE)
        for name, group in groupby(builds, lambda build: build["model"])
    ]


def _builds_of(registry: Registry, name: str) -> list[dict[str, Any]]:
    version = registry.model_version(name)
    planned = {
        each.digest: each.key
        for plan in registry.build_plans(name, version.version)
        for each in plan.planned
    }
    now = utc_now()
    leases = {digest: _held(registry, digest, now) for digest in planned}
    return [
        {
            "model": name,
            "version": version.version,
            "generation": planned[digest].generation,
            "kind": planned[digest].kind.value,
            "precision": planned[digest].precision.value,
            "digest": digest,
            **_progress(lease, now),
        }
        for digest, lease in leases.items()
        if lease is not None
    ]


def _held(registry: Registry, digest: str, now: datetime) -> BuildLease | None:
    lease = registry.lease(digest).lease
    if lease is None or lease.is_released or lease.is_long_expired(now):
        return None
    return None if lease.has_ended_here() else lease


def _progress(lease: BuildLease, now: datetime) -> dict[str, Any]:
    fields = ("host", "process_id", "stage", "stage_since", "line", "taken_at", "renewed_at")
    return {
        **{field: getattr(lease, field) for field in fields},
        "stage_s": _seconds_since(lease.stage_since, now),
        "duration_s": _seconds_since(lease.taken_at, now),
        "silent_s": _seconds_since(lease.renewed_at, now),
        "lease_s": lease.lease_s,
    }


def _seconds_since(at: str, now: datetime) -> float:
    """By two clocks, as the worker may be elsewhere; never below 0."""
    return round(max((now - datetime.fromisoformat(at)).total_seconds(), 0.0), 1)


def _row(build: dict[str, Any]) -> tuple[str, ...]:
    return (
        build["generation"],
        f"{build['kind']} {build['precision']}",
        stage_name(build["stage"]),
        readable_duration(build["stage_s"]),
        readable_duration(build["duration_s"]),
        build["digest"][:12],
        f"{build['host']} ({build['process_id']})",
        _last_line(build),
    )


def _last_line(build: dict[str, Any]) -> str:
    """The worker's last line, or that it may have ended: a worker renews three times a lease."""
    if build["silent_s"] <= build["lease_s"] * _SILENT_SHARE:
        return str(build["line"])
    return (
        f"no sign of its worker for {build['silent_s']:.0f} s: if it has ended, another takes over "
        f"after {build['lease_s']:.0f} s"
    )
