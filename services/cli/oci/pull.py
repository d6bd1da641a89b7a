"""`smelt models add NAME oci://...`: pulled whole, verified as a store is, then published."""

import hashlib
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from compiler_worker.master.recorded import read_recorded
from compiler_worker.model_checks.recipe_check import check_recipe
from services.cli.oci.artifact import (
    Artifact,
    Descriptor,
    open_client,
    proven,
    read_artifact,
)
from services.cli.oci.artifact_reference import OciReference
from services.cli.output.progress import StepLine, Steps
from services.cli.settings import CliSettings
from services.contracts.errors import AlreadyPublishedError, CorruptBlobError, StoreError
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.engines import engine_folder
from services.contracts.registry.registry import Registry
from services.contracts.store.artifact_store import check_file_names
from services.contracts.store.object_store import open_store
from services.contracts.store.scratch import scratch_folder
from services.contracts.text.words import readable_size

_MAX_MANIFEST_BYTES = 4 * 2**20  # as registries have it
_MAX_DOCUMENT_BYTES = 64 * 2**20  # documents are read into memory
_GIVEN = ("samples", "calibration", "tokenizer", "fallback_answers")


class Pull:
    """One artifact on its way into a store."""

    def __init__(self, place: OciReference, registry: Registry, settings: CliSettings) -> None:
        """Nothing is asked for yet.

        Args:
            place: of the artifact.
            registry: of the store.
            settings: whose signatures count, which registries have no TLS.
        """
        self._place = place
        self._registry = registry
        self._settings = settings
        self._client = open_client(place, settings)

    def run(self, name: str, steps: Steps) -> ModelVersion:
        """Publish its engines, then its version under a name; the same is not pulled twice.

        Raises:
            CorruptBlobError: a manifest, blob, master or engine is not what its digest says.
            InvalidModelError: Smelt did not push it.
            NotFoundError: the registry has it not, or a file is missing in it.
            NotReadyError: the registry is away.
            StoreError: the disk is full.
        """
        parent = self._settings.cache_dir
        with (
            steps.step(f"Model {name}") as line,
            scratch_folder(parent, ".pull-", abandoned=".pull-*") as folder,
        ):
            line.begin(1, 3, f"asking for {self._place}")
            what = f"manifests/{self._place.digest or self._place.tag}"
            data = b"".join(self._client.read(what, _MAX_MANIFEST_BYTES))
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            pinned = self._place._replace(digest=digest)
            artifact = read_artifact(data, pinned)
            line.begin(2, 3, f"pulling {pinned}")
            former = self._pulled_before(name, str(pinned))
            if former and self._has_all_engines(former, artifact, folder / "documents", line):
                line.summary = f"version {former.version}, unchanged"
                return former
            pulled = self._fetch(artifact.layers, folder, line)
            line.begin(3, 3, "verifying and publishing")
            version = self._publish(pulled, name, str(pinned), line, former)
            line.summary = f"version {version.version}"
            return version

    def _pulled_before(self, name: str, source: str) -> ModelVersion | None:
        """The newest version of a model, if it was pulled from there."""
        if name not in self._registry.model_names():
            return None
        newest = self._registry.model_version(name)
        return newest if newest.source == source else None

    def _has_all_engines(
        self, former: ModelVersion, artifact: Artifact, folder: Path, line: StepLine
    ) -> bool:
        """Whether every engine of an artifact is in the store, as its documents have it.

        An earlier pull leaves out what is not signed by a key that it trusts.

        Args:
            former: was pulled from there.
            artifact: what is there.
            folder: is made.
            line: shows what is read.
        """
        folder.mkdir()
        documents = [each for each in artifact.layers if not each.key.startswith("blobs/")]
        pulled = self._fetch(documents, folder, line)
        engines, _ = proven(pulled, former, self._settings)
        here = {each.digest for each in self._registry.engines(former.master.digest)}
        return here >= {each.digest for each in engines}

    def _fetch(self, layers: Sequence[Descriptor], folder: Path, line: StepLine) -> Registry:
        """Make a store of layers, each under its key."""
        check_file_names(each.key for each in layers)
        total = sum(each.size for each in layers)
        # They are verified in a second place, and published in a third, on this disk or another.
        if (free := shutil.disk_usage(folder).free) < 3 * total:
            raise StoreError(
                f"{self._place}: {readable_size(total)} need three times that on the disk of "
                f"{folder.parent}, {readable_size(free)} are free; SMELT_HOME names another"
            )
        done = 0
        for each in layers:
            path = folder / "store" / each.key
            most = each.size if each.key.startswith("blobs/") else _MAX_DOCUMENT_BYTES
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    for part in self._client.read(f"blobs/{each.digest}", min(each.size, most)):
                        file.write(part)
                        done += len(part)
                        line.show(f"{readable_size(done)} of {readable_size(total)}")
            except OSError as error:
                raise StoreError(f"{path}: {error.strerror}: is the disk full?") from error
        return Registry(open_store(str(folder / "store")), folder / "cache")

    def _publish(
        self, pulled: Registry, name: str, source: str, line: StepLine, former: ModelVersion | None
    ) -> ModelVersion:
        """Publish what a store holds; what is refused is, before anything is published.

        Args:
            pulled: its registry.
            name: of the model.
            source: of the version.
            line: shows which engines are left out.
            former: the version that was pulled from there before; its recipe may differ by now.
        """
        version = pulled.model_version(next(iter(pulled.model_names()), name))
        record = version.master
        master = read_recorded(pulled.materialise_master(record), record)
        check_recipe(record, version.recipe)
        keys = {key for key in pulled.engine_keys() if key.endswith("/manifest.json")}
        own = {engine_folder(each.manifest.key) for each in pulled.engines(record.digest)}
        if strange := keys - {f"{folder}manifest.json" for folder in own}:
            raise CorruptBlobError(
                f"{source}: {min(strange)} is of another engine or master, or its proof of another "
                "manifest: it was altered; have it pushed again"
            )
        engines, left_out = proven(pulled, version, self._settings)
        folders = [pulled.materialise_engine(each) for each in engines]
        refs = {each: getattr(version, each) for each in _GIVEN}
        given = {each: pulled.materialise_samples(ref) for each, ref in refs.items() if ref}
        for remark in left_out:
            line.keep(remark)
        published = self._registry.publish_master(master)
        for engine, folder in zip(engines, folders, strict=True):
            self._registry.take_signatures(engine.manifest.key, pulled)
            files = {each: folder / each for each in engine.manifest.files}
            with suppress(AlreadyPublishedError):
                self._registry.publish_engine(engine.manifest, files, engine.proof)
        return former or self._registry.add_model_version(
            name=name,
            master=published,
            recipe=version.recipe,
            source=source,
            source_fingerprint=version.source_fingerprint,
            dim_limits=version.dim_limits,
            fallback_verdict=version.fallback_verdict,
            **given,
        )
