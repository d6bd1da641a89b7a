"""The operator's half of a build Job: one folder with `job.yaml` and what differs by generation.

`job.yaml` is a batch/v1 Job: image, store, cache, resources, security. Beside it may lie
`<generation>.yaml` with `nodeSelector`, `tolerations` and `resources` of builds that need a
device of that generation. What differs from task to task is filled in by `job_object.py`.
"""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.facts import Generation
from services.contracts.model.yaml_text import value_from_yaml
from services.controller.interfaces import FIRST_KEY_S

COMPILER_CONTAINER = "builder"
_COMMAND = ["python", "-m", "compiler_worker"]
_PLACEMENT_FIELDS = {"nodeSelector", "tolerations", "resources"}
# A day to read the logs of a Job that ended.
_TTL_S = 24 * 3600
_ATTEMPT_FIELDS = (("backoffLimit", 0), ("restartPolicy", "Never"))


@dataclass(frozen=True)
class JobTemplate:
    """A checked Job, and placements by generation; neither is changed."""

    job: dict[str, Any]
    placements: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_template(path: Path) -> JobTemplate:
    """A template file with the placements that lie beside it.

    Raises:
        InvalidRequestError: a file cannot be read, is no Job or placement, or would repeat a
            build: counting attempts is the build loop's.
    """
    try:
        job = checked_job(value_from_yaml(path.read_text()))
        others = (file for file in path.parent.glob("*.yaml") if _is_generation(file.stem))
        placements = {other.stem: _placement(other) for other in others}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, InvalidRequestError) as error:
        raise InvalidRequestError(f"build job template {path}: {error}") from error
    return JobTemplate(job, placements)


def checked_job(document: Any) -> dict[str, Any]:
    """The Job with what it left out filled in; raises InvalidRequestError."""
    if not isinstance(document, dict) or document.get("kind") != "Job":
        raise InvalidRequestError("expected one batch/v1 Job")
    job = copy.deepcopy(document)
    spec = job.setdefault("spec", {})
    spec.setdefault("ttlSecondsAfterFinished", _TTL_S)
    # `job_object` adds to it for further keys: each build and each proof has a limit of its own
    # in the compiler's settings.
    spec.setdefault("activeDeadlineSeconds", FIRST_KEY_S)
    pod = spec.setdefault("template", {}).setdefault("spec", {})
    for holder, (name, wanted) in zip((spec, pod), _ATTEMPT_FIELDS, strict=True):
        if holder.setdefault(name, wanted) != wanted:
            raise InvalidRequestError(
                f"{name} is {holder[name]!r}, expected {wanted!r}: an attempt that fails is "
                "recorded, and the controller decides on the next one"
            )
    container = compiler_container(pod)
    container.setdefault("command", list(_COMMAND))
    # The last lines of the log become the Pod's own status: why a build failed is seen
    # without the right to read logs, and after the node is gone.
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    return job


def compiler_container(pod: dict[str, Any]) -> dict[str, Any]:
    """The container that builds: the one named so, or the only one. Raises InvalidRequestError."""
    containers: list[dict[str, Any]] = pod.get("containers") or []
    named = [c for c in containers if c.get("name") == COMPILER_CONTAINER]
    if len(found := named or containers) != 1:
        raise InvalidRequestError(
            f"containers {[c.get('name') for c in containers]}: expected one named "
            f"'{COMPILER_CONTAINER}'"
        )
    return found[0]


def refuse_unknown_fields(resource: Any, document: dict[str, Any], source: str) -> None:
    """Raise InvalidRequestError for a field that no object of a kind has.

    The client drops such a field, so the API server could not complain of it: a misspelt
    `nodeSelector` would never be missed.

    Args:
        resource: lightkube's class of it.
        document: the object.
        source: where it comes from, for people.
    """
    kind = document["kind"]
    try:
        lost = _lost(document, resource.from_dict(document).to_dict())
    # What the library raises for a list in place of a mapping, and the like.
    except (TypeError, AttributeError, ValueError, LookupError) as error:
        raise InvalidRequestError(f"{source}: {kind} of another shape: {error}") from error
    if lost:
        raise InvalidRequestError(f"{source}: a {kind} has no field {', '.join(lost)}")


def _is_generation(text: str) -> bool:
    try:
        Generation.parse(text)
    except InvalidRequestError:
        return False
    return True


def _placement(path: Path) -> dict[str, Any]:
    document = value_from_yaml(path.read_text())
    if not isinstance(document, dict) or not document.keys() <= _PLACEMENT_FIELDS:
        raise InvalidRequestError(
            f"{path.name}: expected a mapping of {', '.join(sorted(_PLACEMENT_FIELDS))}"
        )
    return document


def _lost(given: Any, kept: Any, at: str = "") -> list[str]:
    """Paths of what is in the one and not in the other; empty values are nothing."""
    if isinstance(given, dict):
        gone = [f"{at}.{key}" for key in given if key not in kept and given[key] not in (None, {})]
        both = [(given[key], kept[key], f"{at}.{key}") for key in given if key in kept]
    elif isinstance(given, list):
        gone = []
        both = [(*pair, f"{at}[{i}]") for i, pair in enumerate(zip(given, kept, strict=True))]
    else:
        return []
    return gone + [path for one in both for path in _lost(*one)]
