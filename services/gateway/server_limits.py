"""The limits of the gateway's gRPC server, from its settings."""

from services.gateway.observability.request_observers import INFERENCE_PATHS
from services.gateway.open_files import most_connections
from services.gateway.process_memory import default_upload_bytes
from services.gateway.settings import GatewaySettings
from services.grpc_server.limits import Limits


def server_limits(settings: GatewaySettings) -> Limits:
    """What clients may make this process hold."""
    num_ports = 1 if settings.http_port is None else 2
    return Limits(
        max_message_bytes=settings.max_message_bytes,
        max_decompressed_bytes=settings.max_decompressed_bytes,
        large_paths=INFERENCE_PATHS,
        max_upload_bytes=settings.max_upload_bytes or default_upload_bytes(),
        max_streams=settings.max_streams,
        max_request_age_s=settings.max_request_age_s,
        max_connections=most_connections(settings.max_connections, num_ports),
        max_connection_idle_s=settings.max_connection_idle_s,
        max_connection_age_s=settings.max_connection_age_s,
    )
