"""Versions go to a registry and come back whole, or not at all: with Debian's, and with a stub."""

import json
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest

from services.contracts.model.manifest import ProofOutcome, TrafficSource
from services.contracts.security.signing import Signer, TrustRoot
from services.contracts.selection.selection import select
from tests.signing_keys import new_keys
from tests.unit.services.cli.oci.conftest import Commands
from tests.unit.services.cli.oci.registries import (
    PASSWORD,
    TOKEN,
    USER,
    AnyRegistry,
    StubRegistry,
    docker_registry,
    stub_registry,
)

# The real one too where it is quick: others have it among the slow tests.
WITH_BOTH = pytest.mark.parametrize("any_registry", ["stub", "docker-registry"], indirect=True)


def given(folder: Path) -> dict[str, Path]:
    """Files of a version: what is in them is not looked at on the way."""
    names = ("samples", "calibration", "tokenizer", "fallback_answers")
    files = {name: folder / name for name in names}
    for name, path in files.items():
        path.write_text(f"the {name}")
    return files


def layers(registry: StubRegistry, tag: str = "team/tiny:1") -> list[dict[str, str]]:
    return json.loads(registry.blobs[registry.tags[tag]])["layers"]


@WITH_BOTH
def test_a_version_arrives_with_all_that_it_had(
    any_registry: AnyRegistry, here: Commands, there: Commands, tmp_path: Path
) -> None:
    sent = here.add(**given(tmp_path))
    engine = here.build(sent)
    here.build(sent, ProofOutcome.FAILED, "cuda-sm90")
    place = f"oci://{any_registry.address}/team/tiny:1"
    pushed = here.json("export", place, "tiny")
    assert pushed["engines"] == [engine]
    assert "its proof says failed" in pushed["left_out"][0]

    told = there.json("models", "add", "other", place)
    assert told["source"] == pushed["reference"]
    assert told["source"].startswith(f"oci://{any_registry.address}/team/tiny@sha256:")
    got = there.registry.model_version("other")
    own = {"name", "source", "version", "created_at"}
    assert got.model_dump(exclude=own) == sent.model_dump(exclude=own)
    assert got.recipe.labels
    assert got.tokenizer
    for each in (here, there):
        # What a replica does: it selects, and reads verified files.
        engines = each.registry.engines(sent.master.digest)
        device = each.registry.engine(engine).proof.device
        assert device
        chosen = select(engines, device, version=sent).engine
        assert chosen == here.registry.engine(engine)
        files = each.registry.materialise_engine(chosen)
        assert (files / "engine.plan").read_text() == "a plan for cuda-sm89 passed"
        assert sorted(p.name for p in each.registry.materialise_master(sent.master).iterdir())


def test_rows_of_requests_never_leave(
    stub: StubRegistry, here: Commands, there: Commands, tmp_path: Path
) -> None:
    version = here.add()
    held_out, rows = (
        here.registry.put_samples({"x": np.full((1, 4), value, np.float32)}, tmp_path)
        for value in (1, 2)
    )
    traffic = TrafficSource(
        begins_at="2026-11-01",
        ends_at="2026-11-02",
        num_samples=40,
        held_out=held_out,
        num_held_out=10,
    )
    version = here.registry.add_changed_version(version, {"calibration": rows, "traffic": traffic})
    here.build(version)
    pushed = here.json("export", f"oci://{stub.address}/tiny:1", "tiny")
    assert "the 40 rows of requests that it is calibrated with are not pushed" in str(pushed)
    assert not {f"sha256:{each.sha256}" for each in (held_out, rows)} & set(stub.blobs)
    there("models", "add", "tiny", f"oci://{stub.address}/tiny:1")
    got = there.registry.model_version("tiny")
    assert (got.calibration, got.traffic) == (None, None)


def test_what_is_there_is_neither_sent_nor_pulled_again(
    any_registry: AnyRegistry, here: Commands, there: Commands
) -> None:
    here.build(here.add())
    place = f"oci://{any_registry.address}/tiny"
    first = here.json("export", place, "tiny")
    second = here.json("export", "oci", place.removeprefix("oci://"), "tiny")
    assert first["sent_bytes"] > 10_000
    assert second == first | {"sent_bytes": 0}
    there("models", "add", "tiny", place)
    assert "version 1, unchanged" in there("models", "add", "tiny", first["reference"])
    assert there.registry.version_numbers("tiny") == [1]


def test_engines_that_were_built_later_come_to_the_same_version(
    stub: StubRegistry, here: Commands, there: Commands
) -> None:
    version = here.add()
    place = f"oci://{stub.address}/tiny:1"
    here("export", place, "tiny", "--no-engines")
    there("models", "add", "tiny", place)
    assert there.registry.engines(version.master.digest) == []
    engine = here.build(version)
    here("export", place, "tiny")
    there("models", "add", "tiny", place)
    assert there.registry.version_numbers("tiny") == [1]
    assert [each.digest for each in there.registry.engines(version.master.digest)] == [engine]


def test_a_digest_stays_what_it_was_when_its_tag_moves(
    any_registry: AnyRegistry, here: Commands, there: Commands
) -> None:
    place = f"oci://{any_registry.address}/tiny:latest"
    old = here.add(7)
    pinned = here.json("export", place, "tiny")["reference"]
    new = here.add(8)
    here("export", place, "tiny")
    there("models", "add", "by-digest", pinned)
    there("models", "add", "by-tag", place)
    assert there.registry.model_version("by-digest").master == old.master
    assert there.registry.model_version("by-tag").master == new.master


@WITH_BOTH
def test_one_altered_blob_is_refused_and_leaves_nothing(
    any_registry: AnyRegistry, here: Commands, there: Commands
) -> None:
    version = here.add()
    engine = here.registry.engine(here.build(version)).manifest.files["engine.plan"]
    place = f"oci://{any_registry.address}/tiny:1"
    here("export", place, "tiny")
    for ref in (engine, version.master.files["weights.bin"]):
        digest = f"sha256:{ref.sha256}"
        any_registry.alter(digest, b"x" * ref.num_bytes)
        told = there("models", "add", "tiny", place, code=1)
        assert "CorruptBlobError" in told
        assert digest in told
        assert there.contents() == set()


def test_a_blob_that_grew_is_not_read_to_its_end(
    stub: StubRegistry, here: Commands, there: Commands
) -> None:
    ref = here.add().master.files["weights.bin"]
    here("export", f"oci://{stub.address}/tiny:1", "tiny")
    stub.alter(f"sha256:{ref.sha256}", b"x" * (ref.num_bytes + 1))
    told = there("models", "add", "tiny", f"oci://{stub.address}/tiny:1", code=1)
    assert f"got more than {ref.num_bytes} bytes" in told


def test_an_altered_manifest_is_refused_by_who_knows_its_digest(
    any_registry: AnyRegistry, here: Commands, there: Commands
) -> None:
    here.add()
    pinned = here.json("export", f"oci://{any_registry.address}/tiny:1", "tiny")["reference"]
    any_registry.alter(pinned.partition("@")[2], b'{"schemaVersion": 2, "layers": []}')
    there("models", "add", "tiny", pinned, code=1)
    assert there.contents() == set()


def test_an_interrupted_pull_leaves_nothing_and_is_repeated(
    stub: StubRegistry, here: Commands, there: Commands
) -> None:
    ref = here.add().master.files["weights.bin"]
    place = f"oci://{stub.address}/tiny:1"
    here("export", place, "tiny")
    stub.cut = f"sha256:{ref.sha256}"
    assert "NotReadyError" in there("models", "add", "tiny", place, code=1)
    assert there.contents() == set()
    stub.cut = ""
    there("models", "add", "tiny", place)
    assert there.registry.version_numbers("tiny") == [1]


def test_an_interrupted_push_is_seen_by_nobody_and_goes_on(
    stub: StubRegistry, here: Commands, there: Commands
) -> None:
    here.build(here.add())
    place = f"oci://{stub.address}/tiny:1"
    uploads = iter([0, 0, 0, 500])
    stub.refused = lambda request: next(uploads) if request.startswith("PUT") else 0
    told = here("export", place, "tiny", code=1)
    assert "NotReadyError" in told
    assert "HTTP 500" in told
    assert "NotFoundError" in there("models", "add", "tiny", place, code=1)
    stub.refused = lambda request: 0
    stub.seen.clear()
    here("export", place, "tiny")
    sent = [each for each in stub.seen if each.startswith("PUT")]
    missing = len(layers(stub, "tiny:1")) + 1 - 3
    assert len(sent) == missing + 1  # and the manifest
    there("models", "add", "tiny", place)


def log_in(folder: Path, address: str, password: str = PASSWORD) -> None:
    """As `docker login` does."""
    auth = b64encode(f"{USER}:{password}".encode()).decode()
    (folder / "docker").mkdir(exist_ok=True)
    config = {"auths": {address: {"auth": auth}}}
    (folder / "docker" / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "auth", ["basic", "token", pytest.param("docker-registry", marks=pytest.mark.slow)]
)
def test_a_login_is_needed_and_shown_nowhere(
    here: Commands, there: Commands, tmp_path: Path, auth: str
) -> None:
    here.add()
    (tmp_path / "registry").mkdir()
    with (
        docker_registry(tmp_path / "registry", has_login=True)
        if auth == "docker-registry"
        else stub_registry(auth)
    ) as registry:
        place = f"oci://{registry.address}/tiny:1"
        told = here("export", place, "tiny", code=1)
        assert "UnauthenticatedError" in told
        assert f"docker login {registry.address}" in told
        log_in(tmp_path, registry.address, "another")
        told += here("export", place, "tiny", code=1)
        log_in(tmp_path, registry.address)
        told += here("export", place, "tiny") + there("models", "add", "tiny", place, "--json")
    secrets = (PASSWORD, TOKEN, b64encode(f"{USER}:{PASSWORD}".encode()).decode())
    assert not [secret for secret in secrets if secret in told]


@pytest.mark.parametrize(
    "token", [b"[]", b"{}", b'{"token": 7}', b'{"token": "a\\nb"}', b"[" * 10_000, b"x" * 2**21]
)
def test_an_answer_without_a_token_is_named(there: Commands, tmp_path: Path, token: bytes) -> None:
    with stub_registry("token") as registry:
        registry.token = token
        log_in(tmp_path, registry.address)
        told = there("models", "add", "tiny", f"oci://{registry.address}/tiny:1", code=1)
    assert f"InvalidRequestError: oci://{registry.address}/tiny:1: GET http" in told
    assert "token" in told


def test_a_signature_travels_and_decides_what_is_pulled(
    stub: StubRegistry, here: Commands, there: Commands, tmp_path: Path
) -> None:
    keys = new_keys(tmp_path)
    version = here.add()
    signed = here.registry.engine(here.build(version))
    here.registry.sign(signed.manifest, signed.proof, version.master, Signer(keys.private))
    unsigned = here.build(version, generation="cuda-sm90")
    place = f"oci://{stub.address}/tiny:1"
    assert sorted(here.json("export", place, "tiny")["engines"]) == sorted(
        [signed.digest, unsigned]
    )
    told = there("models", "add", "tiny", place, SMELT_TRUST_ROOT=str(keys.public))
    assert f"engine {unsigned[:12]} skipped: not signed by a trusted key" in told
    engines = there.registry.engines(version.master.digest)
    assert [each.digest for each in engines] == [signed.digest]
    trust = TrustRoot(keys.public)
    assert there.registry.untrusted(engines, version.master, trust) == {}


def test_a_second_pull_takes_what_the_first_left_out(
    stub: StubRegistry, here: Commands, there: Commands, tmp_path: Path
) -> None:
    engine = here.build(here.add())
    place = f"oci://{stub.address}/tiny:1"
    here("export", place, "tiny")
    trusted = {"SMELT_TRUST_ROOT": str(new_keys(tmp_path).public)}
    version = there.json("models", "add", "tiny", place, **trusted)["version"]
    master = there.registry.model_version("tiny").master.digest
    assert there.registry.engines(master) == []
    assert "unchanged" in there("models", "add", "tiny", place, **trusted)
    assert there.json("models", "add", "tiny", place)["version"] == version
    assert [each.digest for each in there.registry.engines(master)] == [engine]
    asked = [each for each in stub.seen if "/blobs/" in each]
    assert "unchanged" in there("models", "add", "tiny", place)
    again = [each for each in stub.seen if "/blobs/" in each][len(asked) :]
    # Documents are read, files are not.
    documents = [e["digest"] for e in layers(stub, "tiny:1") if e["mediaType"].endswith("+json")]
    assert sorted(again) == sorted(f"GET /v2/tiny/blobs/{each}" for each in documents)


def test_documents_that_name_another_master_are_refused(
    stub: StubRegistry, here: Commands, there: Commands
) -> None:
    version = here.add()
    engine = here.build(version)
    place = f"oci://{stub.address}/tiny:1"
    here("export", place, "tiny")
    true = stub.tags["tiny:1"]
    other = b"0" * 64

    def forged(kind: str, *, is_proof_moved: bool) -> str:
        """An artifact whose documents of a kind name another master, with right digests."""
        text = stub.blobs[true].decode()
        for layer in json.loads(text)["layers"]:
            if layer["mediaType"] == f"application/vnd.smelt.{kind}.v1+json":
                content = stub.blobs[layer["digest"]].replace(version.master.digest.encode(), other)
                moved = stub.keep(content)
                old, new = (each.removeprefix("sha256:") for each in (layer["digest"], moved))
                # The proof's path has the digest of its manifest.
                text = (
                    text.replace(old, new)
                    if is_proof_moved
                    else text.replace(layer["digest"], moved)
                )
        stub.tags["tiny:1"] = stub.keep(text.encode())
        told = there("models", "add", "tiny", place, code=1)
        assert there.contents() == set()
        return told

    assert "its record says" in forged("version", is_proof_moved=False)
    for is_proof_moved in (True, False):
        told = forged("engine.manifest", is_proof_moved=is_proof_moved)
        assert f"{engine}/manifest.json is of another engine or master" in told
