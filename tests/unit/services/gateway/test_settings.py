"""Settings: from the environment, from arguments, and refused with key and expectation."""

import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.process.settings import read_settings
from services.gateway.settings import GatewaySettings


def test_environment_is_read_and_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_GATEWAY_GRPC_PORT", "0")
    monkeypatch.setenv("SMELT_GATEWAY_GATEWAY_ID", "a")
    settings = read_settings(GatewaySettings, gateway_id="b")
    assert (settings.grpc_port, settings.gateway_id) == (0, "b")


def test_bounds_of_single_models_are_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_GATEWAY_MODEL_MAX_IN_FLIGHT", '{"minilm": 8}')
    assert read_settings(GatewaySettings).model_max_in_flight == {"minilm": 8}
    monkeypatch.setenv("SMELT_GATEWAY_MODEL_MAX_IN_FLIGHT", '{"minilm": 0}')
    with pytest.raises(InvalidRequestError, match="SMELT_GATEWAY_MODEL_MAX_IN_FLIGHT_MINILM"):
        read_settings(GatewaySettings)


@pytest.mark.parametrize("more", [{"workers": 4}, {"is_port_shared": True, "keeper_fd": 7}])
def test_workers_share_their_regions(more: dict[str, int]) -> None:
    assert read_settings(GatewaySettings, shared_memory=True, **more).shared_memory


def test_gateways_that_know_nothing_of_each_other_share_no_regions() -> None:
    with pytest.raises(InvalidRequestError, match=r"cannot go with is_port_shared.*set workers"):
        read_settings(GatewaySettings, shared_memory=True, is_port_shared=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("GRPC_PORT", "70000"),
        ("MAX_IN_FLIGHT", "0"),
        ("LOG_LEVEL", "loud"),
        ("GRPC_PORT", "x"),
        ("MODEL_MAX_IN_FLIGHT", "minilm=8"),
        ("WORKERS", "0"),
        ("WORKERS", "257"),
        ("MAX_DECOMPRESSED_BYTES", "0"),
        ("MAX_UPLOAD_BYTES", "0"),
    ],
)
def test_a_wrong_value_names_key_and_value(
    monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    monkeypatch.setenv(f"SMELT_GATEWAY_{key}", value)
    with pytest.raises(InvalidRequestError, match=f"SMELT_GATEWAY_{key}: got '{value}'"):
        read_settings(GatewaySettings)
