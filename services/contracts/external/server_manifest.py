"""The manifest of a server that Kubernetes runs: a Deployment, and the Service in front of it.

Each version of a model has objects of its own, that two can run beside each other: their names end
in its number, and its pods have a label that the Service selects.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from services.contracts.hardware.labels import PREFIX

Object = dict[str, Any]
# On all objects of a version, with the name of its Deployment as value.
SERVER_LABEL: Final = f"{PREFIX}model-server"
MODEL: Final = f"{PREFIX}model"
VERSION: Final = f"{PREFIX}version"
# What network policies know its pods by; also what keeps them from passing for another part.
_PART: Final = {f"{PREFIX}part": "model-server"}
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
            outside of the cluster.
    """
    kinds = sorted(f"{each.get('apiVersion')} {each.get('kind')}" for each in manifest)
    if kinds != _EXPECTED:
        raise ValueError(
            f"manifest: found {', '.join(kinds)}; expected one {' and one '.join(_EXPECTED)}: "
            "create what else the server needs with kubectl"
        )
    objects = {str(each["kind"]): copy.deepcopy(dict(each)) for each in manifest}
    _check_service(objects[_SERVICE], *place)
    for kind, each in objects.items():
        metadata = _mapping(each, "metadata")
        if not isinstance(metadata.get("name"), str):
            raise ValueError(f"manifest: {kind} without metadata.name: give it one")
        metadata["name"] += f"-{version}"
        _mapping(each, "metadata", "annotations").update({MODEL: name, VERSION: str(version)})
    own = {SERVER_LABEL: objects[_DEPLOYMENT]["metadata"]["name"]}
    _mapping(objects[_SERVICE], "metadata", "labels").update(own)
    _mapping(objects[_SERVICE], "spec", "selector").update(own)
    _mapping(objects[_DEPLOYMENT], "metadata", "labels").update(own)
    _mapping(objects[_DEPLOYMENT], "spec", "selector", "matchLabels").update(own)
    pod_labels = _mapping(objects[_DEPLOYMENT], "spec", "template", "metadata", "labels")
    pod_labels.update(own | _PART)
    return objects


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
    """What lies at a path, made where it is absent; raises ValueError for what is no mapping."""
    found: Any = document
    for key in path:
        found = found.setdefault(key, {})
        if not isinstance(found, dict):
            where = ".".join(path)
            raise ValueError(f"manifest: {document['kind']}: {where}: expected a mapping at {key}")
    return found  # type: ignore[no-any-return]
