"""What matters of one Node or RayService object, as small values. Objects are plain JSON here."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.node_class import NodeClass
from services.controller.interfaces import NodePool
from services.controller.platform.kubernetes.gfd import GPU_RESOURCE, node_class_from_labels

logger = logging.getLogger(__name__)

SOURCE = "kubernetes"


@dataclass(frozen=True, kw_only=True)
class ObservedNode:
    """One node.

    Attributes:
        unschedulable_reason: why it takes no new work; "" when it does.
    """

    node_class: NodeClass
    unschedulable_reason: str = ""


def observed_node(node: Mapping[str, Any]) -> ObservedNode | None:
    """A Node object in short; None when no engine is made for such a node."""
    metadata = node["metadata"]
    try:
        node_class = node_class_from_labels(metadata.get("labels") or {})
    except InvalidRequestError as error:
        logger.error("node '%s' is left out: %s", metadata["name"], error)
        return None
    if node_class is None:
        return None
    return ObservedNode(node_class=node_class, unschedulable_reason=_unschedulable_reason(node))


def _unschedulable_reason(node: Mapping[str, Any]) -> str:
    """Why a node takes no new work.

    A cordoned node keeps what runs there and gets nothing new: it stays known, so that its
    engines stay wanted, and does not count. What still serves there Ray knows.
    """
    if node["metadata"].get("deletionTimestamp"):
        return "being deleted"
    if (node.get("spec") or {}).get("unschedulable"):
        return "cordoned"
    status = node.get("status") or {}
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or []}
    # Not `== "False"`: it is `Unknown` once the kubelet has stopped to report.
    if conditions.get("Ready") != "True":
        return "not ready"
    # The kubelet keeps the resource at zero while the device plugin is away, as it is during
    # a driver's upgrade. A node that never named the resource may share devices otherwise.
    if str((status.get("allocatable") or {}).get(GPU_RESOURCE, "1")) == "0":
        return "no GPU allocatable"
    return ""


def worker_group_classes(service: Mapping[str, Any]) -> dict[str, NodeClass]:
    """Classes that a RayService may start nodes of, by `<service>/<group>`.

    A group counts at zero replicas too: that is what this reads it for.
    """
    name = service["metadata"]["name"]
    cluster = (service.get("spec") or {}).get("rayClusterConfig") or {}
    found: dict[str, NodeClass] = {}
    for group in cluster.get("workerGroupSpecs") or []:
        where = f"{name}/{group.get('groupName', '')}"
        try:
            node_class = _group_class(group)
        except InvalidRequestError as error:
            logger.error("worker group '%s' is left out: %s", where, error)
            continue
        if node_class is not None and group.get("maxReplicas") != 0:
            found[where] = node_class
    return found


def _group_class(group: Mapping[str, Any]) -> NodeClass | None:
    """By the Ray labels that its nodes will have, else by the nodes that it asks for.

    A CPU group counts by the nodes that it asks for only: its Ray label is the least that
    its nodes can do, and engines are made for what they can.
    """
    declared = NodeClass.from_labels(group.get("labels") or {})
    if declared and Generation.parse(declared.generation).platform is Platform.CUDA:
        return declared
    pod = (group.get("template") or {}).get("spec") or {}
    return node_class_from_labels(pod.get("nodeSelector") or {})


def pools_of(
    nodes: Mapping[str, ObservedNode], groups: Iterable[tuple[str, NodeClass]]
) -> list[NodePool]:
    """Nodes grouped by class, then worker groups of which there is no node; a stable order."""
    names: dict[NodeClass, list[str]] = {}
    known = Counter(node.node_class for node in nodes.values())
    ready = Counter(node.node_class for node in nodes.values() if not node.unschedulable_reason)
    for name, node in sorted(nodes.items()):
        note = f" ({node.unschedulable_reason})" if node.unschedulable_reason else ""
        names.setdefault(node.node_class, []).append(name + note)
    classes_of_nodes = list(names)
    for name, node_class in sorted(groups, key=lambda group: group[0]):
        # A group names a generation and little more: nodes of it, where there are any, name more.
        if not any(one.may_be(node_class) for one in classes_of_nodes):
            names.setdefault(node_class, []).append(name)
    return [
        NodePool(
            node_class=node_class,
            source=SOURCE,
            num_nodes=ready[node_class],
            num_known=known[node_class],
            names=tuple(names[node_class]),
        )
        for node_class in sorted(names, key=lambda one: one.canonical_json())
    ]
