"""The manifest of a server that Kubernetes runs: a Deployment, and the Service in front of it.

Each version of a model has objects of its own, that two can run beside each other: their names end
in its number, and its pods have a label that the Service selects.
"""

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from services.contracts.hardware.labels import PREFIX

Object = dict[str, Any]
# On all objects of a version, with the name of its Deployment as value.
SERVER_LABEL: Final = f"{PREFIX}model-server"
MODEL: Final = f"{PREFIX}model"
VERSION: Final = f"{PREFIX}version"
# What network policies know its pods by. Other labels of Smelt's and Ray's are refused: with them a
# pod could pass for a build, for a replica or for a node of the fleet's Ray.
_PART: Final = {f"{PREFIX}part": "model-server"}
_RESERVED_LABELS: Final = (PREFIX, "ray.io/")
# An object with these is deleted too early or never.
_RESERVED_FIELDS: Final = ("finalizers", "ownerReferences")
_DEPLOYMENT: Final = "Deployment"
_SERVICE: Final = "Service"
_EXPECTED: Final = ["apps/v1 Deployment", "v1 Service"]


def server_objects(
    manifest: Sequence[Mapping[str, Any]], place: tuple[str, int], name: str, version: int
) -> dict[str, Object]:
    """The objects of one version, by kind.

    Args:
        manifest: as a person wrote it; it is not changed.
        place: name and port of the Service that clients of the server connect to.
        name: of the model.
        version: its number.

    Raises:
        ValueError: the manifest has other objects, or its Service is another, or is reached from
            outside of the cluster, or it has labels or metadata that are not its to set.
    """
    kinds = sorted(f"{each.get('apiVersion', '')} {each.get('kind', '')}" for each in manifest)
    if kinds != _EXPECTED:
        found = ", ".join(each.strip() or "an object without kind" for each in kinds)
        raise ValueError(
            f"manifest: found {found}; expected one {' and one '.join(_EXPECTED)}: "
            "create what else the server needs with kubectl"
        )
    objects = {str(each["kind"]): copy.deepcopy(dict(each)) for each in manifest}
    _check_service(objects[_SERVICE], *place)
    for kind, each in objects.items():
        metadata = _mapping(each, "metadata")
        if not isinstance(metadata.get("name"), str):
            raise ValueError(f"manifest: {kind} without metadata.name: give it one")
        _check_metadata(kind, metadata)
        metadata["name"] += f"-{version}"
        _mapping(each, "metadata", "annotations").update({MODEL: name, VERSION: str(version)})
    own = {SERVER_LABEL: objects[_DEPLOYMENT]["metadata"]["name"]}
    _mapping(objects[_SERVICE], "metadata", "labels").update(own)
    _mapping(objects[_SERVICE], "spec", "selector").update(own)
    _mapping(objects[_DEPLOYMENT], "metadata", "labels").update(own)
    _mapping(objects[_DEPLOYMENT], "spec", "selector", "matchLabels").update(own)
    _check_metadata("pod template", _mapping(objects[_DEPLOYMENT], "spec", "template", "metadata"))
    pod_labels = _mapping(objects[_DEPLOYMENT], "spec", "template", "metadata", "labels")
    _check_labels(pod_labels.keys() - {*own, *_PART})
    pod_labels.update(own | _PART)
    return objects


def _check_metadata(what: str, metadata: Object) -> None:
    if found := [field for field in _RESERVED_FIELDS if metadata.get(field)]:
        raise ValueError(
            f"manifest: {what} with metadata.{' and metadata.'.join(found)}; expected none, so "
            "that it is there as long as its version is: leave it out"
        )


def _check_labels(keys: Collection[str]) -> None:
    if found := sorted(key for key in keys if str(key).startswith(_RESERVED_LABELS)):
        raise ValueError(
            f"manifest: pod template with labels {', '.join(found)}; expected none of "
            f"{' and '.join(_RESERVED_LABELS)}, which the fleet knows its own pods by: "
            "leave them out"
        )


def _check_service(service: Object, host: str, port: int) -> None:
    """Raise ValueError unless it is that of the URL, and the gateway is the only way to it."""
    name = _mapping(service, "metadata").get("name")
    spec = _mapping(service, "spec")
    listed = spec.get("ports")
    each_port = listed if isinstance(listed, list) else []
    ports = [each.get("port") for each in each_port if isinstance(each, dict)]
    if name != host or port not in ports:
        raise ValueError(
            f"manifest: found Service {name} with ports {ports}; the URL is of Service {host}, "
            f"port {port}: name the Service and one of its ports in the URL"
        )
    if spec.get("type", "ClusterIP") != "ClusterIP" or spec.get("externalIPs"):
        raise ValueError(
            f"manifest: Service {name} is reached from outside of the cluster, without the "
            "gateway's access rules; expected type ClusterIP and no externalIPs"
        )


def _mapping(document: Object, *path: str) -> Object:
    """What lies at a path, made where it is absent or null; raises ValueError for no mapping."""
    found: Any = document
    for key in path:
        if found.get(key) is None:
            found[key] = {}
        found = found[key]
        if not isinstance(found, dict):
            where = ".".join(path)
            raise ValueError(f"manifest: {document['kind']}: {where}: expected a mapping at {key}")
    return found  # type: ignore[no-any-return]
