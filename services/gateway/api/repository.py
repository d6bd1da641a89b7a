"""The models of the fleet in the terms of Triton's model repository."""

from typing import Final

from services.contracts.errors import UnsupportedFeatureError
from services.gateway.routing.table import RoutingTable
from services.pb import open_inference_v2_pb2 as pb

READY: Final = "READY"
_STATES: Final = frozenset({READY, "UNAVAILABLE", "LOADING", "UNLOADING"})


def check_repository(name: str) -> None:
    """Raise UnsupportedFeatureError for a repository of another name than ""."""
    if name:
        raise UnsupportedFeatureError(
            f"repository '{name}': this server has one repository, without a name; leave "
            "repository_name empty"
        )


def index_from_table(table: RoutingTable) -> list[pb.RepositoryIndexResponse.ModelIndex]:
    """Every version, by name and number; READY is what this gateway would have answered now."""
    return [
        _entry(table, name, number)
        for name, versions in sorted(table.view.models.items())
        for number in sorted(versions)
    ]


def _entry(table: RoutingTable, name: str, number: int) -> pb.RepositoryIndexResponse.ModelIndex:
    served = table.view.models[name][number]
    if table.is_ready(name, str(number)):
        return pb.RepositoryIndexResponse.ModelIndex(name=name, version=str(number), state=READY)
    # With the reason: not loaded, or being loaded.
    if table.would_answer(name, str(number)):
        return pb.RepositoryIndexResponse.ModelIndex(
            name=name, version=str(number), state=READY, reason=served.reason
        )
    state = served.state if served.state in _STATES - {READY} else "LOADING"
    return pb.RepositoryIndexResponse.ModelIndex(
        name=name, version=str(number), state=state, reason=served.reason
    )
