"""With a trust root, an engine that is unsigned or altered anywhere is never read."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.contracts.errors import EngineError, StoreError
from services.contracts.model.manifest import ModelVersion, ProofOutcome, PublishedEngine
from services.contracts.model.recipe import InputRecipe
from services.contracts.registry.engines import engine_folder
from services.contracts.registry.registry import Registry
from services.contracts.security.signing import Signer, TrustRoot
from services.contracts.store.object_store import open_store
from services.contracts.text.words import worker_command
from services.engines.base import LoadSpec
from services.replica.engine.checker import EngineChecker
from services.replica.engine.loaded_engine import LoadedEngine, RunningEngine
from services.replica.engine.manager import EngineManager
from tests.signing_keys import KeyFiles, new_keys

from .published import Shelf, onnx_model


class Watched(EngineChecker):
    """Counts the engines that came so far as to be read."""

    num_read = 0

    def check(self, spec: LoadSpec, inputs: dict[str, InputRecipe], proof_s: float = 0.0) -> None:
        """Count it."""
        self.num_read += 1


class Replica:
    """A host on a fresh cache, as a replica that starts on another machine has it."""

    def __init__(self, shelf: Shelf, folder: Path, trust: Path | None) -> None:
        self.registry = Registry(open_store(shelf.store_url), folder / "fresh")
        self.checker = Watched(folder / "checked")
        self._device = shelf.device
        self._trust = TrustRoot(trust) if trust else None

    def load(self) -> LoadedEngine:
        """What this replica would serve with."""

        def no_fallback(model: ModelVersion) -> RunningEngine:
            raise EngineError("no fallback in this test")

        model = self.registry.model_version("toy")
        host = EngineManager(
            self.registry,
            model,
            self._device,
            no_fallback,
            self.checker,
            num_threads=1,
            trust=self._trust,
        )
        return host.load()


@pytest.fixture
def keys(tmp_path: Path) -> KeyFiles:
    return new_keys(tmp_path)


@pytest.fixture
def signed(shelf: Shelf, keys: KeyFiles, tmp_path: Path) -> PublishedEngine:
    """An engine with a file of its own, signed and published beside its model."""
    shelf.publish_model()
    path = tmp_path / "typed"
    path.write_bytes(onnx_model().SerializeToString())
    engine = shelf.publish_engine(files={"typed.onnx": path})
    sign(shelf, engine, keys)
    return engine


def sign(shelf: Shelf, engine: PublishedEngine, keys: KeyFiles) -> None:
    master = shelf.registry.master(engine.manifest.key.master_digest)
    shelf.registry.sign(engine.manifest, engine.proof, master, Signer(keys.private))


def test_a_signed_engine_serves(
    shelf: Shelf, signed: PublishedEngine, keys: KeyFiles, tmp_path: Path
) -> None:
    replica = Replica(shelf, tmp_path, keys.public)
    loaded = replica.load()
    assert loaded.digest == signed.digest
    assert replica.checker.num_read == 1
    loaded.engine.close()


def test_an_unsigned_engine_is_passed_over_with_the_command_that_signs_it(
    shelf: Shelf, keys: KeyFiles, tmp_path: Path
) -> None:
    shelf.publish_model()
    engine = shelf.publish_engine()
    replica = Replica(shelf, tmp_path, keys.public)
    model = replica.registry.model_version("toy")
    faults = replica.registry.untrusted([engine], model.master, TrustRoot(keys.public))
    command = worker_command(shelf.store_url, "sign", engine.digest[:12])
    assert faults[engine.digest].endswith(f"sign it by: {command}")
    with pytest.raises(EngineError):
        replica.load()
    assert replica.checker.num_read == 0
    Replica(shelf, tmp_path, None).load().engine.close()


def test_a_signature_of_a_stranger_does_not_count(
    shelf: Shelf, signed: PublishedEngine, tmp_path: Path
) -> None:
    replica = Replica(shelf, tmp_path, new_keys(tmp_path, "other").public)
    with pytest.raises(EngineError):
        replica.load()
    assert replica.checker.num_read == 0


def stored_files(shelf: Shelf, engine: PublishedEngine) -> Iterator[Path]:
    """Every file of the store that an engine is made of, its master's included."""
    store = Path(shelf.store_url)
    folder = store / engine_folder(engine.manifest.key)
    yield from (path for path in folder.rglob("*") if path.is_file())
    master = shelf.registry.master(engine.manifest.key.master_digest)
    for ref in (*engine.manifest.files.values(), *master.files.values()):
        yield store / "blobs" / "sha256" / ref.sha256


def test_whichever_file_is_altered_the_engine_is_not_read(
    shelf: Shelf, signed: PublishedEngine, keys: KeyFiles, tmp_path: Path
) -> None:
    paths = list(stored_files(shelf, signed))
    assert len(paths) == 5  # manifest, proof, signature, the engine's file, the master's
    for number, path in enumerate(paths):
        whole = path.read_bytes()
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        replica = Replica(shelf, tmp_path / str(number), keys.public)
        with pytest.raises((EngineError, StoreError)):
            replica.load()
        assert replica.checker.num_read == 0, path
        path.write_bytes(whole)
    Replica(shelf, tmp_path / "whole", keys.public).load().engine.close()


def _other_proof(document: Any) -> None:
    document["timings"][0]["p50_s"] = 1e-6


def _other_toolchain(document: Any) -> None:
    document["build_duration_s"] = 9.0


@pytest.mark.parametrize(
    ("name", "change"), [("proofs", _other_proof), ("manifest.json", _other_toolchain)]
)
def test_a_document_that_is_sound_but_another_is_found_out(
    shelf: Shelf,
    signed: PublishedEngine,
    keys: KeyFiles,
    tmp_path: Path,
    name: str,
    change: Callable[[Any], None],
) -> None:
    (path,) = (p for p in stored_files(shelf, signed) if name in str(p))
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))
    replica = Replica(shelf, tmp_path, keys.public)
    with pytest.raises(EngineError):
        replica.load()
    assert replica.checker.num_read == 0


def test_another_master_under_the_same_name_is_found_out(
    shelf: Shelf, signed: PublishedEngine, keys: KeyFiles, tmp_path: Path
) -> None:
    """The version's own record names the files that an engine reads its weights from."""
    other = tmp_path / "other.onnx"
    other.write_bytes(onnx_model(scale=2.0).SerializeToString())
    sneaked = shelf.publish_engine("sneaked", files={"model.onnx": other})
    (path,) = Path(shelf.store_url).glob("models/toy/versions/*.json")
    document = json.loads(path.read_bytes())
    document["master"]["files"] = {
        name: ref.model_dump() for name, ref in sneaked.manifest.files.items()
    }
    path.write_text(json.dumps(document))
    replica = Replica(shelf, tmp_path, keys.public)
    with pytest.raises(EngineError):
        replica.load()
    assert replica.checker.num_read == 0
    model = replica.registry.model_version("toy")
    faults = replica.registry.untrusted([signed], model.master, TrustRoot(keys.public))
    assert "one of them was changed since" in faults[signed.digest]


def test_a_newer_proof_needs_a_signature_of_its_own(
    shelf: Shelf, signed: PublishedEngine, keys: KeyFiles, tmp_path: Path
) -> None:
    proof = signed.proof.model_copy(update={"created_at": "later"})
    newer = shelf.registry.add_proof(signed.digest, proof)
    assert newer.proof.outcome is ProofOutcome.PASSED
    with pytest.raises(EngineError):
        Replica(shelf, tmp_path, keys.public).load()
    sign(shelf, newer, keys)
    Replica(shelf, tmp_path, keys.public).load().engine.close()
