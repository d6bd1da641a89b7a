"""Settings of one replica process, read once."""

import tempfile
from pathlib import Path

from pydantic import ConfigDict, Field

from services.contracts.security.fleet_security import FleetSecuritySettings
from services.contracts.transport.busy_poll import BUSY_POLL_S


class ReplicaSettings(FleetSecuritySettings):
    """Settings of one replica; `SMELT_REPLICA_<NAME>` in the environment of Ray's workers.

    Attributes:
        store_url: the artifact store.
        cache_dir: folder of this machine for verified copies of published files.
        model: name of the model to serve.
        version: its version; 0 takes the latest when the replica starts.
        controller_address: host:port of the controller; "" serves alone.
        socket_dir: folder for the unix socket of the data port.
        host: interface of the TCP data port; loopback unless gateways run elsewhere.
        announced_host: where gateways of other hosts reach that port if `host` is all interfaces;
            "" is the address of this node in Ray's cluster.
        generation_override: a generation to report in place of the detected one.
        num_threads: threads of a CPU engine; 0 leaves it to the library.
        standby_s: how long an engine that was replaced stays loaded without being needed, to be
            returned to at once when the new one fails; 0 where memory is short.
        busy_poll_s: seconds that it looks for the next request without sleeping, as a gateway does
            that has `SMELT_GATEWAY_BUSY_POLL_S`; 0 always sleeps.
        trust_root: PEM file with the public keys whose signatures count; engines without one
            are not loaded. None loads any proven engine.
        sample_key: file of the key that sampled requests are encrypted with, made by `openssl rand
            -hex 32`; None has them in the clear. Unused where no recipe has `sampling`.
        fallback_timeout_s: longest wait for the compiler's export of the master's graph.
    """

    model_config = ConfigDict(frozen=True)
    env_prefix = "SMELT_REPLICA_"

    store_url: str
    cache_dir: Path
    model: str
    version: int = Field(default=0, ge=0)
    controller_address: str = ""
    socket_dir: Path = Path(tempfile.gettempdir())
    host: str = "127.0.0.1"
    announced_host: str = ""
    generation_override: str = ""
    num_threads: int = Field(default=0, ge=0)
    standby_s: float = Field(default=300.0, ge=0)
    busy_poll_s: float = Field(default=BUSY_POLL_S, ge=0, le=0.01)
    trust_root: Path | None = None
    sample_key: Path | None = None
    fallback_timeout_s: float = Field(default=900.0, gt=0)
