"""A model version as a ModelPack artifact (github.com/modelpack/model-spec), its engines beside it.

Each document and file is a layer of its own. A document's path is its key in a store, so what was
pulled is read, and its engines are judged, by the code that reads a store.
"""

import hashlib
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from pydantic import ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from services.cli.doctor.install_commands import install_command
from services.cli.oci.artifact_reference import OciReference
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidModelError, UnsupportedFeatureError
from services.contracts.model.document import Document
from services.contracts.model.manifest import BlobRef, ModelVersion, ProofOutcome, PublishedEngine
from services.contracts.registry.registry import Registry
from services.contracts.selection.selection import recipe_fault

if TYPE_CHECKING:  # it needs an extra
    from services.cli.oci.client import OciClient

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_ARTIFACT_TYPE = "application/vnd.cncf.model.manifest.v1+json"
_PATH = "org.cncf.model.filepath"
_KEY = re.compile(
    r"blobs/sha256/\w{64}|models/[\w.-]+/versions/\d{6,}\.json|engines/\w{64}/\w{64}/[\w./-]+"
)


class LayerType(StrEnum):
    """What a layer holds: ModelPack's media types, and ours for what it has none for."""

    CONFIG = "application/vnd.cncf.model.config.v1+json"
    WEIGHTS = "application/vnd.cncf.model.weight.v1.raw"
    TOKENIZER = "application/vnd.cncf.model.weight.config.v1.raw"
    SAMPLES = "application/vnd.cncf.model.dataset.v1.raw"
    ANSWERS = "application/vnd.smelt.answers.v1.raw"
    VERSION = "application/vnd.smelt.version.v1+json"
    ENGINE_MANIFEST = "application/vnd.smelt.engine.manifest.v1+json"
    ENGINE_PROOF = "application/vnd.smelt.engine.proof.v1+json"
    ENGINE_SIGNATURE = "application/vnd.smelt.engine.signature.v1+json"
    ENGINE_FILE = "application/vnd.smelt.engine.file.v1.raw"


class _Wire(Document):
    # Registries and other tools may add fields.
    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, serialize_by_alias=True, extra="ignore"
    )


class Descriptor(_Wire):
    """A blob of an artifact."""

    media_type: str
    digest: str = Field(pattern="^sha256:[0-9a-f]{64}$")
    size: int = Field(ge=0)
    annotations: dict[str, str] = Field(default={})

    @classmethod
    def of(cls, media_type: LayerType, path: str, content: BlobRef | bytes) -> Self:
        """The descriptor of a file or document.

        Args:
            media_type: what it is.
            path: where tools that unpack artifacts put it; a document's key in a store.
            content: the document, or the file's digest.
        """
        if isinstance(content, bytes):
            sha256 = hashlib.sha256(content).hexdigest()
            content = BlobRef(sha256=sha256, num_bytes=len(content))
        return cls(
            media_type=media_type,
            digest=f"sha256:{content.sha256}",
            size=content.num_bytes,
            annotations={_PATH: path},
        )

    @property
    def key(self) -> str:
        """In a store."""
        if self.media_type.endswith("+json"):
            return self.annotations.get(_PATH, "")
        return f"blobs/{self.digest.replace(':', '/')}"


class Artifact(_Wire):
    """The manifest of an artifact."""

    schema_version: int = 2
    media_type: str = MANIFEST_TYPE
    artifact_type: str = _ARTIFACT_TYPE
    config: Descriptor
    layers: tuple[Descriptor, ...]


def read_artifact(data: bytes, place: OciReference) -> Artifact:
    """Read a manifest; raises InvalidModelError for one that this release would not push."""
    try:
        artifact = Artifact.from_json(data)
    except ValidationError as error:
        fault = error.errors()[0]
        what = ".".join(map(str, fault["loc"]))
        raise InvalidModelError(f"{place}: no artifact: {what}: {fault['msg']}") from error
    if strange := [each.key for each in artifact.layers if not _KEY.fullmatch(each.key)]:
        raise InvalidModelError(f"{place}: '{strange[0]}' is no path of a document")
    types = {each.media_type for each in artifact.layers}
    unknown = {artifact.artifact_type, *types} - {_ARTIFACT_TYPE, *LayerType}
    if unknown or LayerType.VERSION not in types:
        raise InvalidModelError(
            f"{place}: media types {', '.join(sorted(unknown or types))} found, {_ARTIFACT_TYPE} "
            f"with a layer of {LayerType.VERSION} wanted: have it pushed by smelt export of this "
            "release; of what another tool pushed, add the ONNX file"
        )
    return artifact


def proven(
    registry: Registry, version: ModelVersion, settings: CliSettings
) -> tuple[list[PublishedEngine], list[str]]:
    """The engines of a version that are proven, and trusted where that is asked for.

    Args:
        registry: has them.
        version: whose master and recipe they were built for.
        settings: whose signatures count.

    Returns:
        The engines; why others are left out.
    """
    engines = registry.engines(version.master.digest)
    faults = registry.untrusted(engines, version.master, settings.trust)
    for each in engines:
        if each.proof.outcome is not ProofOutcome.PASSED:
            faults[each.digest] = f"its proof says {each.proof.outcome}"
        elif fault := recipe_fault(each, version):
            faults[each.digest] = fault
    left_out = [f"engine {e[:12]} skipped: {f.partition(';')[0]}" for e, f in faults.items()]
    return [each for each in engines if each.digest not in faults], left_out


def open_client(place: OciReference, settings: CliSettings) -> "OciClient":
    """A session with a registry; raises UnsupportedFeatureError without the extra for it."""
    try:
        from services.cli.oci.client import OciClient
    except ImportError as error:
        raise UnsupportedFeatureError(
            f"{place}: registries need a package: {error}: {install_command('requests')}"
        ) from error
    return OciClient(place, settings.oci_plain_http.split(","))
