"""Fills the Job template in for one build task: name, labels, arguments, where it may run."""

import copy
from typing import Any

from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.labels import GENERATION_LABEL, PREFIX
from services.controller.interfaces import BuildTask, deadline_s
from services.controller.platform.command import worker_arguments
from services.controller.platform.kubernetes.gfd import (
    GPU_RESOURCE,
    match_expressions,
    node_selector,
)
from services.controller.platform.kubernetes.job_template import JobTemplate, compiler_container

TASK_LABEL = f"{PREFIX}build-task"
# On a Job that failed and was accounted for: it stays for its log, until its TTL is over.
ACCOUNTED = f"{PREFIX}accounted"
_MANAGER_LABELS = {"app.kubernetes.io/managed-by": "smelt-controller"}
_LABEL_LENGTH = 63
# GPU nodes are commonly tainted to keep everything else away from them.
_GPU_TOLERATION = {"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}


def job_for(task: BuildTask, template: JobTemplate, image: str = "") -> dict[str, Any]:
    """The Job that runs a task.

    Args:
        task: gives name, labels, arguments and time limit.
        template: of the operator; it is copied.
        image: replaces the template's; "" leaves that.

    Raises:
        InvalidRequestError: the template has no container that builds.
    """
    # Every task fills in a copy: the template is shared by all of them, and by several threads.
    job = copy.deepcopy(template.job)
    labels = _labels(task)
    metadata = job.setdefault("metadata", {})
    # Not generateName: a second create of the same task has to be refused as a conflict.
    metadata["name"] = task.name
    metadata.setdefault("labels", {}).update(labels)
    metadata.setdefault("annotations", {}).update(_annotations(task))
    spec = job["spec"]
    spec["activeDeadlineSeconds"] = deadline_s(task, spec["activeDeadlineSeconds"])
    pod_template = spec["template"]
    pod_template.setdefault("metadata", {}).setdefault("labels", {}).update(labels)
    pod = pod_template["spec"]
    container = compiler_container(pod)
    container["args"] = worker_arguments(task)
    if image:
        container["image"] = image
    if task.is_anywhere:
        _drop_gpu(container)
    else:
        _place(pod, task, copy.deepcopy(template.placements.get(task.node_class.generation, {})))
    return job


def _labels(task: BuildTask) -> dict[str, str]:
    # A model's name may be longer than a label: the annotation has all of it.
    return _MANAGER_LABELS | {
        TASK_LABEL: task.name,
        f"{PREFIX}model": task.model[:_LABEL_LENGTH].rstrip("-_."),
        GENERATION_LABEL: task.node_class.generation,
    }


def _annotations(task: BuildTask) -> dict[str, str]:
    return {
        f"{PREFIX}model": task.model,
        f"{PREFIX}version": str(task.version),
        f"{PREFIX}attempt": str(task.attempt),
        f"{PREFIX}node-class": task.node_class.canonical_json().decode(),
        f"{PREFIX}reason": task.reason,
    }


def _place(pod: dict[str, Any], task: BuildTask, placement: dict[str, Any]) -> None:
    """Bind the Pod to nodes of the class; the generation's own file comes first."""
    container = compiler_container(pod)
    selector = pod.setdefault("nodeSelector", {})
    selector.update(placement.get("nodeSelector", {}))
    # After the file's own labels: where both name one, the class of the task decides.
    selector.update(node_selector(task.node_class))
    if "resources" in placement:
        container["resources"] = placement["resources"]
    pod.setdefault("tolerations", []).extend(placement.get("tolerations", []))
    if expressions := match_expressions(task.node_class):
        _require(pod, expressions)
    if Generation.parse(task.node_class.generation).platform is Platform.CPU:
        _drop_gpu(container)
    else:
        _ask_for_gpu(pod, container)


def _require(pod: dict[str, Any], expressions: list[dict[str, Any]]) -> None:
    """Add to the required node affinity; its terms are alternatives, so each gets all."""
    affinity = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    required["nodeSelectorTerms"] = [
        term | {"matchExpressions": [*term.get("matchExpressions", []), *expressions]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]


def _ask_for_gpu(pod: dict[str, Any], container: dict[str, Any]) -> None:
    # The limit alone: Kubernetes takes the request of a GPU from it, and refuses two that differ.
    limits = container.setdefault("resources", {}).setdefault("limits", {})
    limits.setdefault(GPU_RESOURCE, "1")
    if not any(found.get("key") == GPU_RESOURCE for found in pod["tolerations"]):
        pod["tolerations"].append(dict(_GPU_TOLERATION))


def _drop_gpu(container: dict[str, Any]) -> None:
    """Ask for no GPU, whatever the template has: a GPU left idle is dear."""
    resources = container.get("resources") or {}
    for kind in ("limits", "requests"):
        (resources.get(kind) or {}).pop(GPU_RESOURCE, None)
