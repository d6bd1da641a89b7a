"""Settings of the command line: defaults in home, one name for the store everywhere."""

from pathlib import Path

import pytest

from services.cli.fleet.fleet_file import make_run_dir
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError
from services.contracts.process.settings import read_settings


def test_the_store_is_in_home_unless_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SMELT_STORE_URL", raising=False)
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    assert read_settings(CliSettings).store_url == str(tmp_path / "store")
    monkeypatch.setenv("SMELT_STORE_URL", "")
    assert read_settings(CliSettings).store_url == str(tmp_path / "store")
    monkeypatch.setenv("SMELT_STORE_URL", "s3://bucket/prefix")
    assert read_settings(CliSettings).store_url == "s3://bucket/prefix"
    assert read_settings(CliSettings, store_url="memory:").store_url == "memory:"


def test_home_is_absolute_and_what_runs_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = read_settings(CliSettings, home="~/deep/smelt")
    assert settings.home == tmp_path / "deep" / "smelt"
    make_run_dir(settings.run_dir)
    assert settings.run_dir.stat().st_mode & 0o777 == 0o700


def test_a_wrong_value_names_key_and_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_START_TIMEOUT_S", "soon")
    with pytest.raises(InvalidRequestError, match="SMELT_START_TIMEOUT_S: got 'soon'"):
        read_settings(CliSettings)


def test_an_empty_path_is_no_path_and_not_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in ("home", "sample_key"):
        with monkeypatch.context() as patched:
            patched.setenv(f"SMELT_{field.upper()}", "")
            with pytest.raises(InvalidRequestError, match=f"SMELT_{field.upper()}: .*it is empty"):
                read_settings(CliSettings)


def test_the_control_planes_token_is_made_once_and_found(tmp_path: Path) -> None:
    assert CliSettings(home=tmp_path).fleet_token_file is None
    made = CliSettings(home=tmp_path).with_fleet_token()
    path = tmp_path / "fleet_token"
    assert made.fleet_token_file == path
    assert path.stat().st_mode & 0o777 == 0o600
    (token,) = path.read_text().split()
    assert len(token) == 64
    assert CliSettings(home=tmp_path).fleet_token_file == path
    assert CliSettings(home=tmp_path).with_fleet_token() == made
    assert path.read_text().split() == [token]
    # What is not this home's fleet is not shown its token.
    assert CliSettings(home=tmp_path, controller="10.0.0.1:8003").fleet_token_file is None
    own = tmp_path / "own"
    assert (
        CliSettings(home=tmp_path, fleet_token_file=own).with_fleet_token().fleet_token_file == own
    )
