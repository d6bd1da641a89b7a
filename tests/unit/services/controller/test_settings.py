"""Settings of the controller that do not go together."""

from pathlib import Path

import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.process.settings import read_settings
from services.controller.settings import ControllerSettings


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "[::]", "some-host"])
def test_it_does_not_listen_beyond_loopback_without_a_token(tmp_path: Path, host: str) -> None:
    given = {"store_url": "memory:", "cache_dir": tmp_path, "run_dir": tmp_path}
    for loopback in ("127.0.0.1:0", "[::1]:0", "localhost:0"):
        read_settings(ControllerSettings, **given, listen=loopback)
    words = r"^settings SMELT_CONTROLLER_\*: .* without a token.*CONTROLLER_FLEET_TOKEN_FILE"
    with pytest.raises(InvalidRequestError, match=words):
        read_settings(ControllerSettings, **given, listen=f"{host}:0")
    path = tmp_path / "token"
    read_settings(ControllerSettings, **given, listen=f"{host}:0", fleet_token_file=path)


def test_each_setting_that_is_missing_or_wrong_is_named() -> None:
    words = (
        "^SMELT_CONTROLLER_STORE_URL: got nothing.*; SMELT_CONTROLLER_CACHE_DIR: got nothing.*; "
        "SMELT_CONTROLLER_RESYNC_S: got 'soon': expected a number$"
    )
    with pytest.raises(InvalidRequestError, match=words):
        read_settings(ControllerSettings, resync_s="soon")
