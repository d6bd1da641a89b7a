"""What a registry, its answers or a reference can have wrong, and what is said of it."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.cli.oci.artifact_reference import OciReference, parse_reference
from services.cli.oci.client import login_of
from services.contracts.errors import InvalidRequestError
from tests.unit.services.cli.oci.conftest import Commands
from tests.unit.services.cli.oci.registries import StubRegistry

DIGEST = f"sha256:{'0a' * 32}"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("oci://registry/ranker", OciReference("registry", "ranker")),
        ("r.example/ranker:2", OciReference("r.example", "ranker", "2")),
        ("oci://r.example:5000/a/b_c:v1.0", OciReference("r.example:5000", "a/b_c", "v1.0")),
        (f"oci://[::1]:5000/a@{DIGEST}", OciReference("[::1]:5000", "a", digest=DIGEST)),
        (f"oci://r/a:1@{DIGEST}", OciReference("r", "a", "1", DIGEST)),
    ],
)
def test_references_are_read(text: str, wanted: OciReference) -> None:
    assert parse_reference(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "r",
        "oci://ranker",
        "oci://r/A",
        "oci://u:p@r/a",
        "oci://r/a:",
        "oci://r/a@sha256:0",
        "oci://r/../a",
        "oci://r/a?x=1",
        "oci://r//a",
    ],
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="expected oci://REGISTRY/REPOSITORY"):
        parse_reference(text)


@pytest.mark.parametrize(
    ("status", "kind", "fix"),
    [
        (401, "UnauthenticatedError", "docker login 127.0.0.1:"),
        (403, "NotAllowedError", "docker login 127.0.0.1:"),
        (404, "NotFoundError", "was it pushed?"),
        (500, "NotReadyError", "is it up"),
        (405, "InvalidRequestError", "see its log"),
    ],
)
def test_a_refusal_says_what_was_asked_and_what_helps(
    stub: StubRegistry, there: Commands, status: int, kind: str, fix: str
) -> None:
    stub.refused = lambda request: status
    told = there("models", "add", "tiny", f"oci://{stub.address}/team/tiny:1", code=1)
    assert f"{kind}: oci://{stub.address}/team/tiny:1: GET manifests/1: HTTP {status} (" in told
    assert "as the test wants" in told
    assert fix in told


def test_a_registry_that_is_away_is_said_to_be(there: Commands) -> None:
    told = there("models", "add", "tiny", "oci://127.0.0.1:9/tiny:1", code=1)
    assert "NotReadyError: oci://127.0.0.1:9/tiny:1: GET manifests/1: ConnectionError: is" in told


def test_without_tls_only_this_machine_and_named_registries_are_spoken_to(
    stub: StubRegistry, here: Commands
) -> None:
    here.add()
    # This machine under a name that is not known to be its own.
    address = stub.address.replace("127.0.0.1", "127.1")
    place = f"oci://{address}/tiny:1"
    told = here("export", place, "tiny", code=1)
    assert "SSLError" in told
    assert f"SMELT_OCI_PLAIN_HTTP={address}" in told
    assert stub.seen == []
    here("export", place, "tiny", SMELT_OCI_PLAIN_HTTP=f"other:5000,{address}")
    stub.headers = {"Location": f"http://{address}/elsewhere?signature=secret"}
    stub.refused = lambda request: 307
    told = here("export", f"oci://{stub.address}/tiny:1", "tiny", code=1)
    assert "InvalidSchema" in told
    assert "secret" not in told
    assert "GET /elsewhere" not in stub.seen


def manifest(**changed: Any) -> bytes:
    blob = {
        "mediaType": "application/vnd.smelt.version.v1+json",
        "digest": DIGEST,
        "size": 1,
        "annotations": {"org.cncf.model.filepath": "models/tiny/versions/000001.json"},
    }
    found = {
        "schemaVersion": 2,
        "artifactType": "application/vnd.cncf.model.manifest.v1+json",
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob,
        "layers": [blob],
    }
    return json.dumps(found | changed).encode()


FOREIGN = {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": DIGEST, "size": 1}


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (manifest(artifactType="application/vnd.docker.model"), "types application/vnd.docker.mod"),
        (manifest(layers=[FOREIGN]), "media types application/vnd.oci.image.layer.v1.tar found"),
        (manifest(layers=[]), "a layer of application/vnd.smelt.version.v1+json wanted"),
        (manifest(layers=[{**FOREIGN, "digest": "md5:1"}]), "no artifact: layers.0.digest: "),
        (b"<html>", "no artifact"),
    ],
)
def test_what_smelt_did_not_push_is_refused(
    stub: StubRegistry, there: Commands, data: bytes, found: str
) -> None:
    stub.tags["tiny:1"] = stub.keep(data)
    told = there("models", "add", "tiny", f"oci://{stub.address}/tiny:1", code=1)
    assert "InvalidModelError" in told
    assert found in told
    assert there.contents() == set()


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (f"engines/{'0' * 64}/{'0' * 64}/../../../../../escaped", "a relative path below its"),
        ("/tmp/escaped.json", "'/tmp/escaped.json' is no path of a document"),
        ("models/tiny", "'models/tiny' is no path of a document"),
        ("", "'' is no path of a document"),
    ],
)
def test_a_document_that_would_leave_its_folder_is_refused(
    stub: StubRegistry, there: Commands, path: str, found: str
) -> None:
    layer = json.loads(manifest())["layers"][0]
    layer["annotations"] = {"org.cncf.model.filepath": path}
    stub.tags["tiny:1"] = stub.keep(manifest(layers=[layer]))
    told = there("models", "add", "tiny", f"oci://{stub.address}/tiny:1", code=1)
    assert found in told


def test_too_little_space_is_found_before_anything_is_pulled(
    stub: StubRegistry, there: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = json.loads(manifest())["layers"][0]
    large = {**layer, "mediaType": "application/vnd.cncf.model.weight.v1.raw", "size": 2 * 10**9}
    stub.tags["tiny:1"] = stub.keep(manifest(layers=[layer, large]))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9, total=10**10))
    told = there("models", "add", "tiny", f"oci://{stub.address}/tiny:1", code=1)
    assert "StoreError" in told
    assert "2.0 GB need three times that" in told
    assert not [each for each in stub.seen if "/blobs/" in each]


def test_options_that_its_version_has_are_refused(there: Commands, tmp_path: Path) -> None:
    words = ("models", "add", "tiny", "oci://127.0.0.1:9/tiny:1", "--recipe", str(tmp_path))
    assert "leave out the options" in there(*words, code=1)


def test_a_push_gives_a_tag(here: Commands) -> None:
    here.add()
    assert "a push gives a tag" in here("export", f"oci://r/tiny@{DIGEST}", "tiny", code=1)


def test_without_its_extra_the_command_that_brings_it_is_named(
    there: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "services.cli.oci.client", raising=False)
    monkeypatch.setitem(sys.modules, "requests", None)
    told = there("models", "add", "tiny", "oci://127.0.0.1:9/tiny:1", code=1)
    assert "UnsupportedFeatureError" in told
    assert "pip install" in told


def configure(folder: Path, **config: Any) -> None:
    (folder / "docker").mkdir()
    (folder / "docker" / "config.json").write_text(json.dumps(config))


def test_a_credential_helper_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "docker-credential-test"
    program.write_text(
        '#!/bin/sh\nread registry\n[ "$registry" = known:1 ] || { echo none; exit 1; }\n'
        'echo \'{"Username": "me", "Secret": "it"}\'\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert login_of("known:1") == ""  # without a configuration
    configure(tmp_path, credsStore="test", auths={"known:1": {}})
    assert login_of("known:1") == "me:it"
    assert login_of("other") == ""


@pytest.mark.parametrize(
    "config", [{"auths": {"r": {"auth": "p%ss"}}}, {"credHelpers": {"r": "absent"}}, {"auths": []}]
)
def test_a_wrong_configuration_is_named_without_what_it_holds(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    configure(tmp_path, **config)
    with pytest.raises(InvalidRequestError, match="create it again: docker login r") as caught:
        login_of("r")
    assert "p%ss" not in str(caught.value)
