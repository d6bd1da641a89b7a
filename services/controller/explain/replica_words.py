"""How replicas are, and a model version by them, in a word or two."""

from collections.abc import Sequence

from services.contracts.text.words import readable_time
from services.pb import fleet_v1_pb2 as fleet


def replica_state(report: fleet.ReplicaReport) -> str:
    """Its state in a word, as documents have it: LOADING, READY, DRAINING, FAILED."""
    return fleet.ReplicaState.Name(report.state).removeprefix("REPLICA_STATE_")


def loading_words(report: fleet.ReplicaReport) -> str:
    """Since when a replica loads, and what it does; "" for one in another state."""
    if report.state != fleet.REPLICA_STATE_LOADING:
        return ""
    since = f" since {readable_time(report.state_since)}" if report.state_since else ""
    stage = "opens its data port" if report.engine_kind else "loads an engine or the fallback"
    return f"replica {report.replica_id} is loading{since} ({stage})"


def version_words(
    model: fleet.ServedModel | None, ready: Sequence[fleet.ReplicaReport], *, is_building: bool
) -> str:
    """A model version in a fleet: ready, on the fallback, building, unloaded, loading, ...

    Args:
        model: None for a version that the fleet does not know.
        ready: its replicas that take requests.
        is_building: whether an engine of it is being built or proven.
    """
    # Before replicas, which may be on their way out.
    if model and model.is_unloaded:
        return "unloaded"
    if ready:
        state = "ready" if any(report.engine_digest for report in ready) else "on the fallback"
        return f"{state}, building" if is_building else state
    if is_building:
        return "building"
    return model.state.lower() if model else "not deployed"
