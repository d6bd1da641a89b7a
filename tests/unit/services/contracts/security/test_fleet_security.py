"""The fleet's files: whole or not at all, read again, and refused with their names."""

import logging
import ssl
from pathlib import Path

import pytest
from pydantic import ValidationError

from services.contracts.errors import InvalidRequestError
from services.contracts.security.fleet_security import (
    FleetSecuritySettings,
    FleetTls,
    FleetTokens,
    is_loopback,
    warn_in_the_clear,
)
from tests.certificates import Authority, CertificateFiles


def settings_of(files: CertificateFiles, authority: Authority) -> FleetSecuritySettings:
    """As a process would be given them."""
    return FleetSecuritySettings(
        fleet_cert_file=files.cert, fleet_key_file=files.key, fleet_ca_file=authority.cert
    )


def test_settings_make_contexts_that_want_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = settings_of(authority.sign("me"), authority)
    tls = FleetTls.of(settings)
    assert tls is not None
    for context in (tls.server_context(), tls.client_context()):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert FleetSecuritySettings(**settings.fleet_security) == settings  # type: ignore[arg-type]
    assert FleetTls.of(FleetSecuritySettings()) is None
    assert FleetTokens.of(FleetSecuritySettings()) is None


@pytest.mark.parametrize("given", [("cert",), ("cert", "key"), ("ca",)])
def test_some_of_the_files_are_too_few(tmp_path: Path, given: tuple[str, ...]) -> None:
    files = {f"fleet_{name}_file": tmp_path / name for name in given}
    with pytest.raises(ValidationError, match=f"fleet_ca_file, got {len(given)} of them"):
        FleetSecuritySettings(**files)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("cert", "certificate .*me.crt with key .*me.key cannot be used"),
        ("key", "certificate .*me.crt with key .*me.key cannot be used"),
        ("ca", "authority .*authority.crt cannot be used"),
        ("pair", "(?i)cannot be used.*values.mismatch"),
        ("absent", "fleet file .*me.key cannot be read"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, broken: str, words: str) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("me")
    if broken == "pair":
        files.key.write_bytes(authority.sign("else").key.read_bytes())
    elif broken == "absent":
        files.key.unlink()
    else:
        {"cert": files.cert, "key": files.key, "ca": authority.cert}[broken].write_text("no PEM")
    with pytest.raises(InvalidRequestError, match=words):
        FleetTls.of(settings_of(files, authority))


def test_tokens_are_said_and_believed_and_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "token"
    path.write_text("new\nold\n")
    tokens = FleetTokens(path, period_s=0)
    assert (tokens.newest, tokens.all) == ("new", ("new", "old"))
    path.write_text("newest-of-all")
    assert (tokens.newest, tokens.all) == ("newest-of-all", ("newest-of-all",))
    path.write_text("")
    assert tokens.newest == "newest-of-all"
    assert "stay as they were" in caplog.text


@pytest.mark.parametrize(("content", "words"), [(b" \n", "is empty"), (b"\xff", "ASCII")])
def test_a_file_without_tokens_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(InvalidRequestError, match=words):
        FleetTokens(path)
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        FleetTokens(tmp_path / "none")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("", False),
    ],
)
def test_whom_a_port_can_be_reached_from(
    host: str, expected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert is_loopback(host) is expected
    with caplog.at_level(logging.WARNING):
        warn_in_the_clear("data port", host)
    assert ("in the clear" in caplog.text) is not expected


def test_files_that_could_not_be_read_once_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when no descriptor was left: nothing of the files shows when that is over."""
    authority, path = Authority(tmp_path), tmp_path / "token"
    files = authority.sign("me")
    path.write_text("old")
    tls, tokens = FleetTls(files.cert, files.key, authority.cert, 0), FleetTokens(path, 0)
    former = tls.pems()
    newer = authority.sign("newer")
    files.cert.write_bytes(newer.cert.read_bytes())
    files.key.write_bytes(newer.key.read_bytes())
    path.write_text("newest")
    with monkeypatch.context() as broken:
        # The certificate is read, the authority is not, which itself did not change.
        read, absent = Path.read_bytes, (authority.cert, path)
        none = tmp_path / "none"
        broken.setattr(Path, "read_bytes", lambda each: read(none if each in absent else each))
        for _ in range(3):
            assert (tls.pems(), tokens.newest) == (former, "old")
    assert (tls.pems()[0], tokens.newest) == (newer.cert.read_bytes(), "newest")
    assert (
        caplog.text.count("stays the previous one") == caplog.text.count("stay as they were") == 1
    )


def test_files_that_were_read_but_could_not_be_used_once_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL reads them once more, and may find no descriptor either."""

    def fail(*_: object, **__: object) -> None:
        raise OSError("too many open files")

    authority = Authority(tmp_path)
    files, newer = authority.sign("me"), authority.sign("newer")
    tls = FleetTls(files.cert, files.key, authority.cert, 0)
    former = tls.pems()
    files.cert.write_bytes(newer.cert.read_bytes())
    files.key.write_bytes(newer.key.read_bytes())
    with monkeypatch.context() as broken:
        broken.setattr(ssl.SSLContext, "load_cert_chain", fail)
        assert tls.pems() == former
    assert tls.pems()[0] == newer.cert.read_bytes()


def test_a_token_that_was_given_counts_where_its_file_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "token"
    settings = FleetSecuritySettings(fleet_token_file=path, fleet_token="a-secret")
    assert "a-secret" not in repr(settings)
    elsewhere = FleetTokens.of(settings)
    assert elsewhere is not None
    assert (elsewhere.newest, elsewhere.all) == ("a-secret", ("a-secret",))
    path.write_text("newer a-secret")
    here = FleetTokens.of(settings)
    assert here is not None
    assert (here.newest, here.all) == ("newer", ("newer", "a-secret"))
