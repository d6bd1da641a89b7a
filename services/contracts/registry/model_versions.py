"""Masters and model versions in the store."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from services.contracts.errors import (
    AlreadyPublishedError,
    InvalidRequestError,
    NotFoundError,
    SmeltError,
)
from services.contracts.model.dim_limits import DimLimits
from services.contracts.model.local_master import LocalMaster, master_record
from services.contracts.model.manifest import BlobRef, MasterRecord, ModelRemoval, ModelVersion
from services.contracts.model.recipe import Recipe
from services.contracts.registry.externals import EXTERNAL_FOLDER, ExternalRegistry
from services.contracts.registry.numbered_versions import (
    MODELS_FOLDER,
    check_model_name,
    chosen_numbers,
    removals_prefix,
    version_key,
)
from services.contracts.registry.records import numbered_key, revision_numbers
from services.contracts.selection.fallback_verdict import FallbackVerdict
from services.contracts.store.artifact_store import put_files
from services.contracts.text.nearest import nearest


class ModelRegistry(ExternalRegistry):
    """Publishes masters and numbered versions of named models, and finds them."""

    def publish_master(self, opened: LocalMaster) -> MasterRecord:
        """Store a master's files, then its record.

        One that is there is returned with the input values of this opening: an older record has
        none.

        Raises:
            AlreadyPublishedError: the digest is there and names a master with another
                interface; the digest is wrong.
        """
        key = f"masters/{opened.digest}.json"
        try:
            known = self._records.read(key, MasterRecord)
        except NotFoundError:
            known = self._create_master(key, opened)
        if not _is_same_interface(known, opened):
            raise AlreadyPublishedError(
                f"master {opened.digest} is published with other inputs, outputs or opset: "
                "its digest does not cover them; nothing was overwritten"
            )
        return known.model_copy(update={"input_values": dict(opened.input_values)})

    def add_model_version(
        self,
        *,
        name: str,
        master: MasterRecord,
        recipe: Recipe,
        source: str,
        source_fingerprint: str,
        samples: Path | None = None,
        calibration: Path | None = None,
        tokenizer: Path | None = None,
        dim_limits: Mapping[str, DimLimits] | None = None,
        fallback_verdict: FallbackVerdict | None = None,
        fallback_answers: Path | None = None,
    ) -> ModelVersion:
        """Publish the next version of a model; one that repeats the latest returns the latest.

        Args:
            name: of the model; versions that were removed are not counted as the latest.
            master: is published already.
            recipe: of the version.
            source: what the master was made of, as the caller named it.
            source_fingerprint: digest of the source.
            samples: real inputs (.npz) for task metrics; None where the source has none.
            calibration: real inputs (.npz) for the scales of quantised engines; None without them.
            tokenizer: `tokenizer.json`; None for a version that takes no text.
            dim_limits: bounds of dynamic dimensions that the import found.
            fallback_verdict: what a fallback is compared by, see `kept_answers`.
            fallback_answers: file of the reference's answers; None where none are kept.

        Raises:
            InvalidRequestError: the name has characters that cannot stand in a key.
        """
        check_model_name(name)
        refs = [self._put(each) for each in (samples, calibration, tokenizer, fallback_answers)]
        draft = ModelVersion(
            name=name,
            version=0,
            master=master,
            recipe=recipe,
            source=source,
            source_fingerprint=source_fingerprint,
            samples=refs[0],
            calibration=refs[1],
            tokenizer=refs[2],
            dim_limits=dict(dim_limits or {}),
            fallback_verdict=fallback_verdict,
            fallback_answers=refs[3],
            created_at="",
        )
        return self.add_changed_version(draft, {})

    def add_changed_version(
        self, version: ModelVersion, changes: Mapping[str, object]
    ) -> ModelVersion:
        """Publish a version with other fields as the next one of its model.

        Args:
            version: whose files are in the store; a published one has to be the newest still.
            changes: of its fields, by name; number and time are new in any case.

        Raises:
            InvalidRequestError: the name is an external model's; another version came meanwhile.
        """
        name = version.name
        base = version.version
        if self._numbers(EXTERNAL_FOLDER, name)[1]:
            raise InvalidRequestError(
                f"model '{name}' is, or was, external, and a name is of one kind for good; choose "
                "another one"
            )

        def check(kept: Sequence[int]) -> None:
            if base and kept[-1:] != [base]:
                raise InvalidRequestError(
                    f"{name}: nothing was published: the change is of version {base}, and the "
                    f"newest is now {kept[-1] if kept else 'none'}, which it would undo; look at "
                    "that one, and ask for the change again"
                )

        return self._add(MODELS_FOLDER, version.model_copy(update=changes), _is_repeat, check)

    def model_names(self) -> list[str]:
        """Names of all models that have a version left, sorted."""
        return self._names(MODELS_FOLDER)

    def versions(self, name: str) -> list[ModelVersion]:
        """All versions of a model that were not removed, oldest first; none of an unknown one."""
        return [self._version(name, number) for number in self.version_numbers(name)]

    def readable_versions(self, name: str) -> tuple[list[ModelVersion], dict[int, str]]:
        """Those of `versions` whose document can be read, and of the others why not, by number."""
        found = []
        unread = {}
        for number in self.version_numbers(name):
            try:
                found.append(self._version(name, number))
            except SmeltError as error:
                unread[number] = str(error)
        return found, unread

    def master(self, digest: str) -> MasterRecord:
        """One master by its digest; raises NotFoundError."""
        return self._records.read(f"masters/{digest}.json", MasterRecord)

    def model_version(self, name: str, version: int | None = None) -> ModelVersion:
        """One version of a model, the latest when none is given.

        Raises:
            NotFoundError: names the models or versions that exist.
        """
        return self._version(name, self._wanted(name, version)[-1])

    def version_numbers(self, name: str) -> list[int]:
        """Numbers of the versions that were not removed, ascending; also of unreadable ones.

        Raises InvalidRequestError for a name that no model can have.
        """
        check_model_name(name)
        return self._numbers(MODELS_FOLDER, name)[0]

    def require_version(self, name: str, version: int | None = None) -> int:
        """The number of a version, external or not, of the newest when none is given.

        Raises:
            NotFoundError: names the models or versions that exist.
        """
        external = self.external_numbers(name)
        if external and version in (None, *external):
            return version or external[-1]
        return self._wanted(name, version)[-1]

    def removed_versions(self) -> dict[str, list[int]]:
        """Numbers of the removed versions, ascending, of each model, external or not, with any."""
        found = {}
        for folder in (MODELS_FOLDER, EXTERNAL_FOLDER):
            keys = self._records.keys(f"{folder}/")
            names = {key.split("/")[1] for key in keys if key.split("/")[2] == "removed"}
            for name in sorted(names):
                found[name] = revision_numbers(keys, removals_prefix(folder, name))
        return found

    def removal(self, name: str, version: int) -> ModelRemoval:
        """That a version was removed; raises NotFoundError when it was not."""
        folder = EXTERNAL_FOLDER if self._numbers(EXTERNAL_FOLDER, name)[1] else MODELS_FOLDER
        return self._records.read(
            numbered_key(removals_prefix(folder, name), version), ModelRemoval
        )

    def remove_model(
        self, name: str, version: int | None = None, *, who: str = ""
    ) -> dict[int, str]:
        """Have versions served no more, all of them when none is given.

        Masters and engines stay: their keys are digests, and another version may use
        them, also one that is added later.

        Args:
            name: of the model.
            version: None removes all versions.
            who: asked for it; kept in the removal record.

        Returns:
            Which, each with why its document cannot be read; "" where it can.

        Raises:
            NotFoundError: names the models or versions that exist.
        """
        numbers = self._wanted(name, version)
        _, unread = self.readable_versions(name)
        self._remove(MODELS_FOLDER, name, numbers, who)
        return {number: unread.get(number, "") for number in numbers}

    def _put(self, file: Path | None) -> BlobRef | None:
        return self._store.put_blob(file) if file else None

    def _wanted(self, name: str, version: int | None) -> list[int]:
        """This version, or all when none is given; raises NotFoundError."""
        numbers = self.version_numbers(name)
        if not numbers and (external := self.external_versions(name)):
            raise NotFoundError(
                f"model '{name}' is external, {external[-1].words}: it has no master, and so no "
                "engines, builds or samples"
            )
        if not numbers:
            names = self.model_names()
            hint = nearest(name, [*names, *self.external_names()])
            raise NotFoundError(
                f"model '{name}' not found{hint}; there are: {', '.join(names) or 'none'}"
            )
        return chosen_numbers(name, version, numbers)

    def _create_master(self, key: str, opened: LocalMaster) -> MasterRecord:
        record = master_record(opened, put_files(self._store, opened.files))
        try:
            self._records.create(key, record)
        except AlreadyPublishedError:
            # Another publisher was faster; one digest may stand for other bytes of the same
            # graph (another serialiser), so its record counts, not ours.
            return self._records.read(key, MasterRecord)
        return record

    def _version(self, name: str, number: int) -> ModelVersion:
        return self._records.read(version_key(MODELS_FOLDER, name, number), ModelVersion)


def _is_same_interface(record: MasterRecord, opened: LocalMaster) -> bool:
    wanted = (tuple(opened.inputs), tuple(opened.outputs), opened.opset)
    return (record.inputs, record.outputs, record.opset) == wanted


def _is_repeat(latest: ModelVersion, version: ModelVersion) -> bool:
    """Whether publishing would change nothing; the master differs after a better export."""
    return (
        latest.source_fingerprint == version.source_fingerprint
        and latest.recipe == version.recipe
        and latest.samples == version.samples
        and latest.calibration == version.calibration
        and latest.tokenizer == version.tokenizer
        and latest.dim_limits == version.dim_limits
        and latest.master.digest == version.master.digest
    )
