"""A model version as a ModelPack artifact (github.com/modelpack/model-spec), its engines beside it.

Each document and file is a layer of its own. A document's path is its key in a store, so what was
pulled is read, and its engines are judged, by the code that reads a store.
"""

import hashlib
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from pydantic import ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from services.cli.doctor.install_commands import install_command
from services.cli.oci.reference import OciReference
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidModelError, UnsupportedFeatureError
from services.contracts.model.document import Document
from services.contracts.model.manifest import (
    BlobRef,
    MasterRecord,
    ProofOutcome,
    PublishedEngine,
)
from services.contracts.registry.registry import Registry

if TYPE_CHECKING:  # it needs an extra
    from services.cli.oci.client import OciClient

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_ARTIFACT_TYPE = "application/vnd.cncf.model.manifest.v1+json"
_PATH = "org.cncf.model.filepath"
_TITLE = "org.opencontainers.image.title"  # by which `oras pull` names files


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
            path: where tools that unpack artifacts put it; a document's key.
            content: the document, or a file's digest.
        """
        ref = content if isinstance(content, BlobRef) else _ref(content)
        return cls(
            media_type=media_type,
            digest=f"sha256:{ref.sha256}",
            size=ref.num_bytes,
            annotations={_PATH: path, _TITLE: path},
        )

    @property
    def is_file(self) -> bool:
        """Whether it is a blob of a store, and not a document."""
        return not self.media_type.endswith("+json")

    @property
    def key(self) -> str:
        """In a store."""
        blob = f"blobs/{self.digest.replace(':', '/')}"
        return blob if self.is_file else self.annotations.get(_PATH, "")


class Artifact(_Wire):
    """The manifest of an artifact."""

    schema_version: int = 2
    media_type: str = MANIFEST_TYPE
    artifact_type: str = _ARTIFACT_TYPE
    config: Descriptor
    layers: tuple[Descriptor, ...]


def read_artifact(data: bytes, place: OciReference) -> Artifact:
    """Read a manifest; raises InvalidModelError for any that this release did not push."""
    try:
        artifact = Artifact.from_json(data)
    except ValidationError as error:
        raise InvalidModelError(f"{place}: no manifest of an artifact: {error}") from error
    types = {each.media_type for each in artifact.layers}
    unknown = {artifact.artifact_type, *types} - {_ARTIFACT_TYPE, *LayerType}
    if unknown or LayerType.VERSION not in types:
        raise InvalidModelError(
            f"{place}: media types {sorted(unknown or types)} found, '{_ARTIFACT_TYPE}' with layers that this "
            "release of Smelt knows wanted: push it by smelt export; of what another tool pushed, "
            "add the ONNX file"
        )
    return artifact


def proven(
    registry: Registry, master: MasterRecord, settings: CliSettings
) -> tuple[list[PublishedEngine], list[str]]:
    """The engines of a master that are proven, and trusted where that is asked for.

    Args:
        registry: has them.
        master: that they were built from.
        settings: whose signatures count.

    Returns:
        The engines; why others are left out.
    """
    trust = None
    if settings.trust_root:
        from services.contracts.security.signing import TrustRoot

        trust = TrustRoot(settings.trust_root)
    engines = registry.engines(master.digest)
    faults = registry.untrusted(engines, master, trust)
    for each in engines:
        if each.proof.outcome is not ProofOutcome.PASSED:
            faults[each.digest] = f"its proof says {each.proof.outcome}"
    left_out = [f"engine {e[:12]} left out: {f.partition(';')[0]}" for e, f in faults.items()]
    return [each for each in engines if each.digest not in faults], left_out


def open_client(place: OciReference, settings: CliSettings) -> "OciClient":
    """A session with a registry; raises UnsupportedFeatureError without the extra for it."""
    try:
        from services.cli.oci.client import OciClient
    except ImportError as error:
        raise UnsupportedFeatureError(
            f"{place}: registries need a package: {error}; {install_command('requests')}"
        ) from error
    return OciClient(place, settings.oci_plain_http.split(","))


def _ref(content: bytes) -> BlobRef:
    return BlobRef(sha256=hashlib.sha256(content).hexdigest(), num_bytes=len(content))
