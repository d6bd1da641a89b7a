"""`smelt export oci://...`: a model version and its engines, into a registry."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from io import BytesIO
from typing import BinaryIO

from services.cli.oci.artifact import Artifact, Descriptor, LayerType, open_client, proven
from services.cli.oci.artifact_reference import parse_reference
from services.cli.output.progress import Steps
from services.cli.output.show import show
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError
from services.contracts.model.document import canonical_json
from services.contracts.model.manifest import BlobRef, ModelVersion, PublishedEngine
from services.contracts.registry.engines import engine_folder
from services.contracts.registry.records import numbered_key
from services.contracts.registry.registry import Registry
from services.contracts.store.artifact_store import ArtifactStore
from services.contracts.store.cache import FileCache
from services.contracts.store.object_store import open_store
from services.contracts.text.words import readable_size

_Layer = tuple[LayerType, str, BlobRef | bytes]


def run_export_oci(
    settings: CliSettings, reference: str, model: str, version: int | None, *, has_engines: bool
) -> None:
    """Push a version; its tag appears after all that it names.

    Args:
        settings: where the store is, whose signatures count, which registries have no TLS.
        reference: of the artifact, by its tag.
        model: name of a model in the store.
        version: of it; None for the newest.
        has_engines: push its proven engines too.

    Raises:
        InvalidRequestError: a digest is named, or the registry refuses what is pushed.
        NotFoundError: no such model or version.
    """
    place = parse_reference(reference)
    if place.digest:
        raise InvalidRequestError(f"{place}: a push gives a tag, and prints its digest")
    client = open_client(place, settings)
    store = open_store(settings.store_url, must_exist=True)
    cache = FileCache(store, settings.cache_dir)
    registry = Registry(store, settings.cache_dir)
    found, rows_left_out = _without_requests(registry.model_version(model, version))
    engines, left_out = proven(registry, found, settings) if has_engines else ([], [])
    left_out += rows_left_out
    layers = list(_layers(store, found, engines))
    descriptors = [Descriptor.of(*each) for each in layers]
    config = LayerType.CONFIG, "config.json", _config(found, descriptors)
    artifact = Artifact(config=Descriptor.of(*config), layers=tuple(descriptors))
    data = artifact.canonical_json()
    sent = 0
    with Steps().step(f"Push of {model} to {place}") as line:
        for index, each in enumerate((*layers, config), 1):
            blob = Descriptor.of(*each)
            line.begin(index, len(layers) + 1, f"{each[1]}, {readable_size(blob.size)}")
            if client.put_blob(blob.digest, partial(_opened, cache, each[2])):
                sent += blob.size
        client.put_manifest(data)
        line.summary = f"{readable_size(sent)} sent, the rest was there"
    pinned = place._replace(digest=f"sha256:{hashlib.sha256(data).hexdigest()}")
    document = {
        "reference": str(pinned),
        "version": found.version,
        "engines": [engine.digest for engine in engines],
        "left_out": left_out,
        "sent_bytes": sent,
    }
    words = f"{model} version {found.version} with {len(engines)} engines: {pinned}"
    show(document, [*left_out, words])


def _without_requests(version: ModelVersion) -> tuple[ModelVersion, list[str]]:
    """A version without rows of clients' requests, and a line on what is left out."""
    if version.traffic is None:
        return version, []
    words = (
        f"the {version.traffic.num_samples} rows of requests that it is calibrated with are not "
        "pushed: a fleet that pulls it calibrates by its own traffic"
    )
    return version.model_copy(update={"calibration": None, "traffic": None}), [words]


def _layers(
    store: ArtifactStore, version: ModelVersion, engines: Sequence[PublishedEngine]
) -> Iterator[_Layer]:
    files = [(LayerType.WEIGHTS, *each) for each in version.master.files.items()]
    given = (
        (LayerType.TOKENIZER, "tokenizer.json", version.tokenizer),
        (LayerType.SAMPLES, "samples.npz", version.samples),
        (LayerType.SAMPLES, "calibration.npz", version.calibration),
        (LayerType.ANSWERS, "answers.npz", version.fallback_answers),
    )
    yield from files
    yield from ((kind, path, ref) for kind, path, ref in given if ref)
    key = numbered_key(f"models/{version.name}/versions/", version.version)
    yield LayerType.VERSION, key, version.canonical_json()
    for engine in engines:
        folder = engine_folder(engine.manifest.key)
        for name, ref in engine.manifest.files.items():
            yield LayerType.ENGINE_FILE, f"{folder}files/{name}", ref
        for key in store.list(folder):
            yield _document_type(key.removeprefix(folder)), key, store.read(key)


def _document_type(name: str) -> LayerType:
    known = {"proofs": LayerType.ENGINE_PROOF, "signatures": LayerType.ENGINE_SIGNATURE}
    return known.get(name.partition("/")[0], LayerType.ENGINE_MANIFEST)


def _config(version: ModelVersion, layers: Sequence[Descriptor]) -> bytes:
    """What ModelPack's tools show of a model."""
    own = {"name": version.name, "version": str(version.version), "createdAt": version.created_at}
    files = {"type": "layers", "diffIds": [each.digest for each in layers]}
    return canonical_json({"descriptor": own, "config": {"format": "onnx"}, "modelfs": files})


def _opened(cache: FileCache, content: BlobRef | bytes) -> BinaryIO:
    if isinstance(content, bytes):
        return BytesIO(content)
    return cache.file(content, "").open("rb")
