"""Names of build tasks: the same work has the same name."""

import hashlib
import re
from collections.abc import Sequence

from services.contracts.model.document import canonical_json
from services.contracts.model.manifest import ModelVersion
from services.controller.interfaces import NodePool

_SLUG_LENGTH = 20
_HASH_DIGITS = 20
_NOT_IN_NAME = re.compile("[^a-z0-9]+")


def task_name(version: ModelVersion, pool: NodePool, marks: Sequence[object]) -> str:
    """At most 47 of a-z 0-9 -, a letter first, so that it can name a Kubernetes Job.

    Args:
        version: of the model.
        pool: its class of nodes is part of the name.
        marks: JSON values in which one task differs from the next one.
    """
    subject = [version.name, version.version, pool.node_class.digest(), marks]
    digest = hashlib.sha256(canonical_json(subject)).hexdigest()[:_HASH_DIGITS]
    slug = _NOT_IN_NAME.sub("-", version.name)[:_SLUG_LENGTH].strip("-")
    return f"build-{slug}-{digest}"
