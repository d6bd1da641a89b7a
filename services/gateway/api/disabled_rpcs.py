"""Why an RPC of the protocol is not offered: what is missing of what would switch it on."""

from collections.abc import Mapping
from typing import Final

_ADMIN: Final = "SMELT_GATEWAY_ADMIN=true"
# Of the standard variables; see `telemetry.tracing`.
_TRACES: Final = "OTEL_TRACES_EXPORTER=otlp (this gateway makes no traces)"
# By how the RPC's name begins.
_ALWAYS: Final = {
    "SystemSharedMemory": "switch it on with SMELT_GATEWAY_SHARED_MEMORY=true",
    "CudaSharedMemory": "the gateway has no GPU; use system shared memory or raw contents",
}


def disabled_reasons(*, is_admin: bool = False, is_traced: bool = False) -> Mapping[str, str]:
    """By how an RPC's name begins, what to do to have it; "" stands for all others.

    Args:
        is_admin: whether RPCs that change something are switched on.
        is_traced: whether this process makes traces.
    """
    missing = [
        what for what, is_there in ((_ADMIN, is_admin), (_TRACES, is_traced)) if not is_there
    ]
    return {
        **_ALWAYS,
        "Repository": f"switch it on with {_ADMIN}",
        "LogSettings": f"switch it on with {_ADMIN}",
        "TraceSetting": f"switch it on with {' and '.join(missing)}",
        "": "it is not implemented",
    }


def disabled_reason(name: str, reasons: Mapping[str, str]) -> str:
    """The one of an RPC."""
    return next(why for prefix, why in reasons.items() if name.startswith(prefix))
