"""How the versions of a model are now: ready, on the fallback, being built, not deployed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.cli.fleet.control_client import fleet_on_store
from services.cli.fleet.fleet_file import START_ONE
from services.cli.settings import CliSettings
from services.contracts.errors import SmeltError
from services.contracts.model.version_shares import shares_among
from services.contracts.text.words import NO_FLEET
from services.pb import fleet_v1_pb2 as fleet


@dataclass(frozen=True, kw_only=True)
class VersionState:
    """One version as its fleet has it.

    Attributes:
        words: its state.
        is_serving: it has a replica that takes requests, or an external server that answers.
        share: of the requests that name no version, now.
    """

    words: str
    is_serving: bool
    share: float


def fleet_or_why_not(settings: CliSettings) -> tuple[fleet.FleetSnapshot | None, str]:
    """The fleet on this store, or why what it serves is not known."""
    try:
        snapshot = fleet_on_store(settings)
    except SmeltError as error:
        # What the store holds is worth printing all the same.
        return None, f"what is served now is not known: {error}"
    away = f"{NO_FLEET}: what is served now is not known; {START_ONE}"
    return snapshot, "" if snapshot else away


def version_states(
    snapshot: fleet.FleetSnapshot | None, name: str, versions: Sequence[int]
) -> dict[int, VersionState]:
    """The state of each of these versions; none without a fleet.

    Args:
        snapshot: of the fleet; None without a fleet: then the result is empty.
        name: of the model.
        versions: numbers.

    Returns:
        By number.
    """
    if snapshot is None:
        return {}
    ready = {number: ready_replicas(snapshot, name, number) for number in versions}
    external = {
        model.version
        for model in snapshot.models
        if model.name == name and model.external_json and model.state == "READY"
    }
    serving = {number for number in versions if ready[number] or number in external}
    weights = {model.version: model.weight for model in snapshot.models if model.name == name}
    shares = shares_among(weights, [number for number in versions if number in serving])
    return {
        number: VersionState(
            words=_words(snapshot, name, number, ready[number]),
            is_serving=number in serving,
            share=shares.get(number, 0.0),
        )
        for number in versions
    }


def with_states(
    snapshot: fleet.FleetSnapshot | None,
    name: str,
    documents: Mapping[int, dict[str, Any]],
    *,
    is_each_version: bool,
) -> Iterator[dict[str, Any]]:
    """Versions as plain data, with what the fleet has of them; null where there is none.

    Args:
        snapshot: of the fleet.
        name: of the model.
        documents: by number, ascending.
        is_each_version: all, each with its state; else the newest, with the numbers that serve.
    """
    states = version_states(snapshot, name, list(documents))
    if is_each_version:
        for number, document in documents.items():
            state = states.get(number)
            yield document | {"state": state and state.words}
    elif documents:
        serving = [number for number, state in states.items() if state.is_serving]
        yield list(documents.values())[-1] | {
            "versions": list(documents),
            "serving": None if snapshot is None else serving,
        }


def ready_replicas(
    snapshot: fleet.FleetSnapshot, name: str, version: int
) -> list[fleet.ReplicaReport]:
    """The replicas of a model version that take requests.

    Args:
        snapshot: of the fleet.
        name: of the model.
        version: of the model.
    """
    return [
        report
        for report in snapshot.replicas
        if (report.model_name, report.model_version) == (name, version)
        and report.state == fleet.REPLICA_STATE_READY
    ]


def _words(
    snapshot: fleet.FleetSnapshot, name: str, version: int, ready: Sequence[fleet.ReplicaReport]
) -> str:
    subject = (name, version)
    found = [model for model in snapshot.models if (model.name, model.version) == subject]
    is_building = any(
        build.started_at and (build.model_name, build.model_version) == subject
        for build in snapshot.builds
    )
    # Before replicas, which may be on their way out.
    if found and found[0].is_unloaded:
        return "unloaded"
    if ready:
        state = "ready" if any(report.engine_digest for report in ready) else "on the fallback"
        return f"{state}, building" if is_building else state
    if is_building:
        return "building"
    return found[0].state.lower() if found else "not deployed"
