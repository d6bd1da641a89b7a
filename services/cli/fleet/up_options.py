"""What a person may choose for a local fleet."""

from typing import Self

from pydantic import model_validator

from services.contracts.errors import InvalidRequestError
from services.contracts.model.document import Document


class UpOptions(Document):
    """Options of `smelt up`.

    Attributes:
        grpc_port, metrics_port: 0 takes free ones.
        http_port: of clients that speak HTTP; None leaves it to the gateway's own settings, which
            have none by default.
        generation: serve as this generation (a simulation); "" detects the device.
        ray_address: a Ray cluster to serve on; "" starts one on this host.
        host: where controller and gateway listen; other than loopback, for replicas and clients
            of other hosts.
        is_observed: start Prometheus beside it, and Grafana where that is installed.
        observe_port: of Prometheus; 0 takes a free one.
        num_gateway_workers: gateway processes on the port; None leaves it to the gateway's own
            settings, and without one takes `default_workers`.
    """

    grpc_port: int = 8001
    http_port: int | None = None
    metrics_port: int = 8002
    generation: str = ""
    ray_address: str = ""
    host: str = "127.0.0.1"
    is_observed: bool = False
    observe_port: int = 9090
    num_gateway_workers: int | None = None

    @model_validator(mode="after")
    def _is_simulated_here_alone(self) -> Self:
        if self.generation and self.ray_address:
            raise InvalidRequestError(
                "--generation simulates one on this host's own Ray, and --ray-address joins a "
                "cluster whose nodes publish theirs (ray start --labels); leave one of them out"
            )
        return self
