"""Which fallback a replica serves with, and why, in words."""

from services.contracts.selection.selection import reason_words
from services.pb import fleet_v1_pb2 as fleet

INTERIM = "ONNX Runtime serves while torch compiles the fallback"


def fallback_name(report: fleet.ReplicaReport) -> str:
    """What computes; ONNX Runtime where torch's fallback is wrong, or is not compiled yet."""
    is_runtime = report.fallback_refuted or report.is_fallback_interim
    return "ONNX Runtime" if is_runtime else "torch.compile"


def fallback_why(report: fleet.ReplicaReport) -> str:
    """Why no engine serves, and why torch does not where it does not; "" while it loads."""
    why = reason_words(report.fallback_reason) or report.detail
    return "; ".join(words for words in (why, report.fallback_refuted) if words)
