"""What every pod must be: without privileges, with requests, by a known image."""

import re
from collections.abc import Iterator

from tests.integration.k8s.objects import Object, Objects, Pod, config_map, pods, ray_service

IMAGES = {"smelt-gateway", "smelt-controller", "smelt-replica", "smelt-compiler"}
_IMAGE = re.compile(r"(?:.*/)?(?P<name>smelt-[a-z]+)(?::(?P<tag>[\w.-]+)|@sha256:[0-9a-f]{64})")


def check_privileges(objects: Objects) -> list[str]:
    """Nothing is root, gains privileges, or writes to its own file system."""
    findings = []
    for pod in pods(objects):
        whole = pod.spec.get("securityContext", {})
        if not whole.get("runAsNonRoot") or whole.get("runAsUser", 0) < 1000:
            findings.append(f"{pod.where}: may be root")
        if whole.get("seccompProfile") != {"type": "RuntimeDefault"}:
            findings.append(f"{pod.where}: any system call")
        for container in pod.containers:
            findings += _privileges(f"{pod.where} {container['name']}", container)
    cluster = ray_service(objects)["spec"]["rayClusterConfig"]
    findings += _privileges("the autoscaler", cluster["autoscalerOptions"])
    return findings


def _privileges(where: str, container: Object) -> Iterator[str]:
    context = container.get("securityContext", {})
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{where}: may gain privileges"
    if context.get("capabilities") != {"drop": ["ALL"]}:
        yield f"{where}: keeps capabilities"
    if context.get("readOnlyRootFilesystem") is not True:
        yield f"{where}: writes to its image's files"


def check_resources(objects: Objects) -> list[str]:
    """Every container asks for processors and memory, and has a limit on memory."""
    return [
        f"{pod.where} {container['name']}: requests {requests}, limits {limits}"
        for pod in pods(objects)
        for container in pod.containers
        for requests, limits in [_asked(container)]
        if not {"cpu", "memory"} <= requests.keys() or "memory" not in limits
    ]


def _asked(container: Object) -> tuple[Object, Object]:
    resources = container.get("resources", {})
    return resources.get("requests", {}), resources.get("limits", {})


def check_tokens(objects: Objects) -> list[str]:
    """Only the controller speaks to the API server; the Ray head does as KubeRay's account."""
    return [
        f"{pod.where}: token of the API server mounted"
        for pod in pods(objects)
        if pod.spec.get("automountServiceAccountToken") is not False and not _may_ask_api(pod)
    ]


def _may_ask_api(pod: Pod) -> bool:
    is_head = pod.is_ray and pod.labels["ray.io/node-type"] == "head"
    return is_head or pod.labels["smelt.dev/part"] == "controller"


def check_images(objects: Objects) -> list[str]:
    """Our images alone, all of one release, each by a fixed tag or digest."""
    settings = config_map(objects, "smelt-controller")
    found = {pod.where: c["image"] for pod in pods(objects) for c in pod.containers}
    # The template's own is replaced by the setting.
    found.pop("Job smelt-build")
    found["builds"] = settings["SMELT_CONTROLLER_COMPILER_IMAGE"]
    findings, releases = [], set()
    for where, image in found.items():
        match = _IMAGE.fullmatch(image)
        if match is None or match["name"] not in IMAGES or match["tag"] == "latest":
            findings.append(f"{where}: image '{image}' is not one of ours by tag or digest")
        else:
            releases.add(match["tag"])
    if len(releases) > 1:
        findings.append(f"images of several releases: {releases}")
    return findings
