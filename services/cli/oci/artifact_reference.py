"""What names an artifact: `oci://REGISTRY/REPOSITORY[:TAG][@sha256:DIGEST]`."""

import re
from typing import NamedTuple

from services.contracts.errors import InvalidRequestError

OCI_SCHEME = "oci://"
_NAME = "[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:{OCI_SCHEME})?((?:[\w.-]+|\[[0-9a-f:]+\])(?::\d+)?)/({_NAME}(?:/{_NAME})*)"
    r"(?::(\w[\w.-]{0,127}))?(?:@(sha256:[0-9a-f]{64}))?",
    re.ASCII,
)


class OciReference(NamedTuple):
    """An artifact; where it has a digest, that counts."""

    registry: str
    repository: str
    tag: str = "latest"
    digest: str = ""

    def __str__(self) -> str:
        version = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{OCI_SCHEME}{self.registry}/{self.repository}{version}"


def parse_reference(text: str) -> OciReference:
    """Read a reference; raises InvalidRequestError."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise InvalidRequestError(
            f"'{text}': expected {OCI_SCHEME}REGISTRY/REPOSITORY[:TAG][@sha256:DIGEST], as in "
            f"{OCI_SCHEME}registry.example:5000/team/ranker:1"
        )
    registry, repository, tag, digest = match.groups()
    return OciReference(registry, repository, tag or "latest", digest or "")
