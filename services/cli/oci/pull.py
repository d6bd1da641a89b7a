"""`smelt models add NAME oci://...`: pulled whole, verified as a store is, then published."""

import hashlib
import shutil
from contextlib import suppress
from pathlib import Path

from compiler_worker.master.recorded import read_recorded
from compiler_worker.model_checks.recipe_check import check_recipe
from services.cli.oci.artifact import Artifact, open_client, proven, read_artifact
from services.cli.oci.reference import OciReference
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

_MAX_DOCUMENT_BYTES = 64 * 2**20  # they are read into memory
_MAX_MANIFEST_BYTES = 4 * 2**20  # as registries have it
_OTHERS = ("samples", "calibration", "tokenizer", "fallback_answers")


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
        """Publish its engines, and then its version under a name; the same is not pulled twice.

        Raises:
            CorruptBlobError: a manifest, blob, master or engine is not what its digest says.
            InvalidModelError: Smelt did not push it.
            NotFoundError: the registry has it not, or it names files that it has not.
            NotReadyError: the registry is away.
            StoreError: the disk is full.
        """
        home = self._settings.cache_dir
        with (
            steps.step(f"Model {name}") as line,
            scratch_folder(home, ".pull-", abandoned=".pull-*") as folder,
        ):
            line.begin(1, 3, f"asking for {self._place}")
            what = f"manifests/{self._place.digest or self._place.tag}"
            data = b"".join(self._client.read(what, _MAX_MANIFEST_BYTES))
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            source = str(self._place._replace(digest=digest))
            newest = self._registry.versions(name)[-1:]
            if newest and newest[0].source == source:
                line.summary = f"version {newest[0].version}, unchanged"
                return newest[0]
            line.begin(2, 3, f"pulling {source}")
            self._fetch(read_artifact(data, self._place), folder, line)
            line.begin(3, 3, "verifying, and publishing")
            pulled = Registry(open_store(str(folder / "store")), folder / "cache")
            version = self._publish(pulled, name, source, line)
            line.summary = f"version {version.version}"
            return version

    def _fetch(self, artifact: Artifact, folder: Path, line: StepLine) -> None:
        """Make a store of its layers, each under its key."""
        check_file_names(each.key for each in artifact.layers)
        total = sum(each.size for each in artifact.layers)
        # Once more as verified files, and once in a store that may be on this disk.
        if (free := shutil.disk_usage(folder).free) < 3 * total:
            raise StoreError(
                f"{self._place}: {readable_size(total)} need three times that on the disk of "
                f"{folder.parent}, {readable_size(free)} are free; SMELT_HOME names another"
            )
        done = 0
        for each in artifact.layers:
            target = folder / "store" / each.key
            most = each.size if each.is_file else min(each.size, _MAX_DOCUMENT_BYTES)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as file:
                    for part in self._client.read(f"blobs/{each.digest}", most):
                        file.write(part)
                        done += len(part)
                        line.show(f"{readable_size(done)} of {readable_size(total)}")
            except OSError as error:
                raise StoreError(f"{target}: {error.strerror}: is the disk full?") from error

    def _publish(self, pulled: Registry, name: str, source: str, line: StepLine) -> ModelVersion:
        """Publish what was pulled; whatever is refused is, before anything is published.

        Args:
            pulled: the store of what was pulled.
            name: of the model.
            source: pinned by its digest.
            line: shows what is left out.
        """
        model = next(iter(pulled.model_names()), name)
        version = pulled.model_version(model)
        record = version.master
        master = read_recorded(pulled.materialise_master(record), record)
        engines, left_out = proven(pulled, record, self._settings)
        places = [engine_folder(each.manifest.key) for each in engines]
        wanted = [f"engines/{master.digest}/{each.digest}/" for each in engines]
        if places != wanted:
            raise CorruptBlobError(
                f"{source}: found engines for {places}, wanted {wanted}: it was altered; have it "
                "pushed again"
            )
        check_recipe(record, version.recipe)
        folders = [pulled.materialise_engine(each) for each in engines]
        blobs = {name: getattr(version, name) for name in _OTHERS}
        others = {n: pulled.materialise_samples(ref) for n, ref in blobs.items() if ref}
        for remark in left_out:
            line.keep(remark)
        published = self._registry.publish_master(master)
        for engine, folder in zip(engines, folders, strict=True):
            self._registry.take_signatures(engine.manifest.key, pulled)
            files = {each: folder / each for each in engine.manifest.files}
            with suppress(AlreadyPublishedError):
                self._registry.publish_engine(engine.manifest, files, engine.proof)
        return self._registry.add_model_version(
            name=name,
            master=published,
            recipe=version.recipe,
            source=source,
            source_fingerprint=version.source_fingerprint,
            dim_limits=version.dim_limits,
            fallback_verdict=version.fallback_verdict,
            **others,
        )
