"""How a replica is, in words: what it does, and which fallback it serves with and why."""

from services.contracts.selection.selection import reason_words
from services.contracts.text.words import readable_time
from services.pb import fleet_v1_pb2 as fleet

INTERIM = "ONNX Runtime serves while torch compiles the fallback"


def fallback_name(report: fleet.ReplicaReport) -> str:
    """What computes; replicas of an older release report only that it is a fallback."""
    return report.fallback_name or report.engine_kind


def fallback_why(report: fleet.ReplicaReport) -> str:
    """Why no engine serves, and why torch does not where it does not; "" while it loads."""
    why = reason_words(report.fallback_reason) or report.detail
    return "; ".join(words for words in (why, report.fallback_refuted) if words)


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
