"""What a replica reports to the controller."""

import os
import socket
from collections.abc import Sequence

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import ModelVersion
from services.pb import fleet_v1_pb2 as fleet
from services.replica.replica import Replica


def report_from_replica(
    replica: Replica,
    model: ModelVersion,
    device: DeviceFacts,
    *,
    replica_id: str,
    addresses: Sequence[str],
    token: bytes,
) -> fleet.ReplicaReport:
    """The whole state of a replica now; its engine is named once it serves.

    Args:
        replica: whose state is read.
        model: that it serves.
        device: that it runs on.
        replica_id: unique in the fleet, also over restarts.
        addresses: of its data port, for gateways of this host and of others.
        token: that a gateway has to send in HELLO.
    """
    report = fleet.ReplicaReport(
        replica_id=replica_id,
        model_name=model.name,
        model_version=model.version,
        state=replica.state,
        state_since=replica.state_since,
        addresses=addresses,
        data_token=token,
        host_id=socket.gethostname(),
        device_facts_json=device.canonical_json(),
        process_id=os.getpid(),
    )
    if loaded := replica.loaded:
        report.engine_digest = loaded.digest
        report.engine_kind = loaded.kind
        report.engine_precision = loaded.precision
        report.engine_generation = loaded.generation
        report.fallback_reason = loaded.fallback_reason.value if loaded.fallback_reason else ""
        report.detail = loaded.detail
        report.fallback_name = loaded.engine.name if loaded.fallback_reason else ""
        report.fallback_refuted = loaded.refutation.words if loaded.refutation else ""
        report.is_fallback_interim = loaded.is_interim and loaded.refutation is None
        for shape, samples_per_s in loaded.speeds.items():
            report.engine_speeds.add(shape=shape, samples_per_s=samples_per_s)
    return report
