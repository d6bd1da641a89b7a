"""Clients never take all files of a gateway, which has to connect to replicas too."""

import resource
from collections.abc import Iterator

import pytest

from services.gateway.open_files import allow_most_files
from services.gateway.server_limits import server_limits
from services.gateway.settings import GatewaySettings


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int]]:
    """Those of this process, which has them again afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(("http_port", "expected"), [(None, 750), (0, 375)])
def test_a_low_limit_leaves_a_quarter_to_the_gateway(
    limits: tuple[int, int], http_port: int | None, expected: int
) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, limits[1]))
    settings = GatewaySettings(http_port=http_port)
    assert server_limits(settings).max_connections == expected
    assert server_limits(GatewaySettings(max_connections=7)).max_connections == 7


def test_a_gateway_raises_the_limit_that_it_begins_with(limits: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, limits[1]))
    allow_most_files()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limits[1], limits[1])


def test_the_limits_of_connections_and_requests_are_those_of_the_settings() -> None:
    given = {
        "max_streams": 3,
        "max_request_age_s": 4.0,
        "max_connection_idle_s": 5.0,
        "max_connection_age_s": 6.0,
        "max_upload_bytes": 7,
    }
    found = server_limits(GatewaySettings.model_validate(given))
    assert {name: getattr(found, name) for name in given} == given
