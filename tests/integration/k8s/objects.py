"""Rendered Kubernetes objects, and what the checks ask of them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

Object = dict[str, Any]
Objects = list[Object]
BUILDERS = "smelt-builders"
_DIGEST_SUFFIX = re.compile(r"-[a-z0-9]{10}$")


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod that an object will make.

    Attributes:
        where: the object and the part of it, for people.
        labels: what selectors find it by; KubeRay's own labels are among them.
        is_ray: whether KubeRay adds to it.
    """

    where: str
    labels: dict[str, str]
    spec: Object
    is_ray: bool = False

    @property
    def containers(self) -> list[Object]:
        """All of them, those that run first too."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    def port_names(self) -> dict[str, int]:
        """Declared container ports by name."""
        return {p["name"]: p["containerPort"] for c in self.containers for p in c.get("ports", [])}


def title(item: Object) -> str:
    """`Kind name`."""
    return f"{item['kind']} {item['metadata']['name']}"


def of_kind(objects: Objects, *kinds: str) -> Objects:
    """Objects of these kinds, in their order."""
    return [item for item in objects if item["kind"] in kinds]


def ray_service(objects: Objects) -> Object:
    """The one RayService."""
    (service,) = of_kind(objects, "RayService")
    return service


def config_map(objects: Objects, name: str) -> dict[str, str]:
    """Data of a ConfigMap by the name that its sources give it, without kustomize's digest."""
    found = [
        item["data"]
        for item in of_kind(objects, "ConfigMap")
        if name in (item["metadata"]["name"], _DIGEST_SUFFIX.sub("", item["metadata"]["name"]))
    ]
    assert len(found) == 1, f"ConfigMap {name}: {len(found)} of it"
    return dict(found[0])


def builder_job(objects: Objects) -> Object:
    """The Job that the controller makes builds from."""
    job = yaml.safe_load(config_map(objects, BUILDERS)["job.yaml"])
    assert isinstance(job, dict)
    return job


def pods(objects: Objects) -> list[Pod]:
    """Every pod that the objects will make, builds included."""
    made = [
        Pod(where=title(item), labels=template["metadata"]["labels"], spec=template["spec"])
        for item in [*of_kind(objects, "Deployment"), builder_job(objects)]
        for template in [item["spec"]["template"]]
    ]
    return [*made, *ray_pods(objects)]


def ray_pods(objects: Objects) -> Iterator[Pod]:
    """The head and one pod of each worker group."""
    cluster = ray_service(objects)["spec"]["rayClusterConfig"]
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        kind = "worker" if "groupName" in group else "head"
        own = {"ray.io/node-type": kind, **group.get("labels", {})}
        template = group["template"]
        yield Pod(
            where=f"RayService {kind} {group.get('groupName', '')}".strip(),
            labels={**template["metadata"]["labels"], **own},
            spec=template["spec"],
            is_ray=True,
        )


def is_selected(labels: dict[str, str], selector: Object) -> bool:
    """Whether a label selector takes a pod with these labels."""
    exact = selector.get("matchLabels", {})
    if any(labels.get(key) != value for key, value in exact.items()):
        return False
    for term in selector.get("matchExpressions", []):
        assert term["operator"] == "In", "only In is used here"
        if labels.get(term["key"]) not in term["values"]:
            return False
    return True
