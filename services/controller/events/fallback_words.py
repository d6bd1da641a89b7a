"""Which fallback a replica serves with, and why, in words."""

from services.contracts.selection.selection import reason_words
from services.pb import fleet_v1_pb2 as fleet

INTERIM = "ONNX Runtime serves while torch compiles the fallback"


def fallback_name(report: fleet.ReplicaReport) -> str:
    """What computes; replicas of an older release report only that it is a fallback."""
    return report.fallback_name or report.engine_kind


def fallback_why(report: fleet.ReplicaReport) -> str:
    """Why no engine serves, and why torch does not where it does not; "" while it loads."""
    why = reason_words(report.fallback_reason) or report.detail
    return "; ".join(words for words in (why, report.fallback_refuted) if words)
