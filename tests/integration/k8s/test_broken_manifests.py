"""Each check finds what it is for: manifests are broken on purpose."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from tests.integration.k8s import configuration, network, ray_rules, safety, schemas, wiring
from tests.integration.k8s.checks import CHECKS, Check
from tests.integration.k8s.objects import Objects
from tests.integration.k8s.rendering import K8S, render

_CLUSTER = "RayService smelt:spec.rayClusterConfig"
_GROUPS = f"{_CLUSTER}.workerGroupSpecs"
_HEAD = f"{_CLUSTER}.headGroupSpec.template.spec.containers.0"
_RAY = f"{_GROUPS}.1.template.spec.containers.0"
_POD = "spec.template.spec"
_GATEWAY = f"Deployment smelt-gateway:{_POD}"
_CONTROLLER = f"Deployment smelt-controller:{_POD}"
_TIMEOUT = {"ray.io/initializing-timeout": "30m"}
_REPLICA = "ConfigMap smelt-replica:data"
GONE = object()


@dataclass(frozen=True)
class Break:
    """One fault.

    Attributes:
        at: `Kind name:path.to.field`, numbers are positions in lists.
        to: its new value; GONE removes it.
        found_by: the check that must see it.
    """

    at: str
    to: Any
    found_by: Check


BREAKS = [
    Break(f"{_GATEWAY}.containers.0.imge", "x", schemas.check_kubernetes_kinds),
    Break("Service smelt-gateway:spec.ports.0.port", "grpc", schemas.check_kubernetes_kinds),
    Break(
        "PodDisruptionBudget smelt-gateway:apiVersion", "policy/v3", schemas.check_kubernetes_kinds
    ),
    Break(f"{_GROUPS}.0.template", GONE, schemas.check_custom_resources),
    Break(f"{_GROUPS}.0.maxReplica", 3, schemas.check_custom_resources),
    Break("GRPCRoute smelt:spec.rules.0.backendRefs.0.wight", 1, schemas.check_custom_resources),
    Break(
        "PodMonitor smelt-gateway:spec.podMetricsEndpoints.0.interval",
        15,
        schemas.check_custom_resources,
    ),
    Break(
        "PrometheusRule smelt:spec.groups.0.rules.0.expression",
        "up",
        schemas.check_custom_resources,
    ),
    Break("RayService smelt:spec.upgradeStrategy.type", "NewCluter", ray_rules.check_ray_service),
    Break("RayService smelt:metadata.name", "s" * 48, ray_rules.check_ray_service),
    Break("RayService smelt:metadata.annotations", _TIMEOUT, ray_rules.check_ray_service),
    Break(f"{_HEAD}.ports.3.name", "web", ray_rules.check_ray_service),
    Break(f"{_GROUPS}.0.rayStartParams.labels", "a=b", ray_rules.check_ray_service),
    Break(f"{_GROUPS}.1.groupName", "cpu", ray_rules.check_ray_service),
    Break(f"{_GROUPS}.0.template.spec.restartPolicy", "Always", ray_rules.check_ray_service),
    Break(f"{_CLUSTER}.autoscalerOptions.version", GONE, ray_rules.check_ray_service),
    Break(f"{_CLUSTER}.authOptions", GONE, ray_rules.check_ray_service),
    Break(f"{_GROUPS}.1.rayStartParams.node-manager-port", GONE, ray_rules.check_ray_ports),
    Break(f"{_GROUPS}.1.template.spec.securityContext.sysctls", [], ray_rules.check_ray_ports),
    Break(
        f"{_GROUPS}.1.labels", {"smelt.dev/generation": "cuda-sm89"}, ray_rules.check_generations
    ),
    Break(f"{_GROUPS}.1.template.spec.tolerations", GONE, ray_rules.check_generations),
    Break(f"{_GROUPS}.1.maxReplicas", 0, ray_rules.check_applications),
    Break(
        "ConfigMap smelt-gateway:data.SMELT_GATEWAY_GRCP_PORT", "1", configuration.check_settings
    ),
    Break(
        "ConfigMap smelt-gateway:data.SMELT_GATEWAY_GRPC_PORT",
        "80001",
        configuration.check_settings,
    ),
    Break(
        "ConfigMap smelt-controller:data.SMELT_CONTROLLER_FLEET_TOKEN_FILE",
        GONE,
        configuration.check_settings,
    ),
    Break("ConfigMap smelt-store:data.url", GONE, wiring.check_references),
    Break(
        "ConfigMap smelt-gateway:data.SMELT_GATEWAY_GRPC_PORT",
        "8005",
        configuration.check_addresses,
    ),
    Break(f"{_REPLICA}.SMELT_REPLICA_CONTROLLER_ADDRESS", "x:8003", configuration.check_addresses),
    Break(f"{_GATEWAY}.terminationGracePeriodSeconds", 30, configuration.check_graces),
    Break(
        f"{_GROUPS}.0.template.spec.terminationGracePeriodSeconds", GONE, configuration.check_graces
    ),
    Break("Service smelt-controller:spec.selector", {"app": "controller"}, wiring.check_selectors),
    Break(
        "Deployment smelt-gateway:spec.selector.matchLabels", {"app": "x"}, wiring.check_selectors
    ),
    Break(
        "NetworkPolicy smelt-builder:spec.podSelector.matchLabels",
        {"a": "b"},
        wiring.check_selectors,
    ),
    Break("Service smelt-gateway:spec.ports.0.targetPort", "http", wiring.check_ports),
    Break(f"{_GATEWAY}.containers.0.readinessProbe.grpc.port", 9001, wiring.check_ports),
    Break(
        "PodMonitor smelt-head:spec.podMetricsEndpoints.1.port", "autoscaler", wiring.check_ports
    ),
    Break("GRPCRoute smelt:spec.rules.0.backendRefs.0.port", 8002, wiring.check_routes),
    Break("Gateway smelt:spec.listeners.0.hostname", "example.com", wiring.check_routes),
    Break(f"{_CONTROLLER}.serviceAccountName", "default", wiring.check_references),
    Break(f"{_CONTROLLER}.containers.0.envFrom.1.secretRef.name", "s3", wiring.check_references),
    Break(f"{_CONTROLLER}.volumes.0.configMap.name", "builders", wiring.check_references),
    Break(f"{_RAY}.envFrom.0.configMapRef.name", "smelt-replica", wiring.check_references),
    Break("Role smelt-controller:rules.0.verbs", ["*"], wiring.check_rights),
    Break(
        "ClusterRoleBinding smelt-controller:subjects.0.namespace", "default", wiring.check_rights
    ),
    Break("NetworkPolicy smelt-fleet:spec.ingress.1.from", GONE, network.check_network),
    Break(
        "NetworkPolicy smelt-controller:spec.ingress.0.ports.0.port", 8004, network.check_network
    ),
    Break("NetworkPolicy smelt-names:spec.egress", [], network.check_network),
    Break("NetworkPolicy smelt-controller:spec.policyTypes", ["Egress"], network.check_network),
    Break(f"{_GATEWAY}.securityContext.runAsUser", 0, safety.check_privileges),
    Break(f"{_RAY}.securityContext", GONE, safety.check_privileges),
    Break(f"{_CONTROLLER}.containers.0.resources.requests.memory", GONE, safety.check_resources),
    Break(f"{_GATEWAY}.automountServiceAccountToken", GONE, safety.check_tokens),
    Break(f"{_GATEWAY}.containers.0.image", "smelt-gateway", safety.check_images),
    Break(f"{_GATEWAY}.containers.0.image", "smelt-gateway:latest", safety.check_images),
    Break(f"{_RAY}.image", "smelt-replica:0.2.0", safety.check_images),
]


def name_of(fault: Break) -> str:
    return f"{fault.found_by.__name__}-{fault.at.rpartition(':')[2].rpartition('spec.')[2]}"


@pytest.mark.parametrize("fault", BREAKS, ids=name_of)
def test_a_fault_is_found(fault: Break) -> None:
    objects = render(K8S / "overlays" / "staging")
    break_at(objects, fault.at, fault.to)
    assert fault.found_by(objects) != []


def in_builder(change: Callable[[Any], None]) -> Objects:
    """The staging overlay with another Job template."""
    objects = render(K8S / "overlays" / "staging")
    (builders,) = (
        o["data"] for o in objects if o["metadata"]["name"].startswith("smelt-builders-")
    )
    job = yaml.safe_load(builders["job.yaml"])
    change(job["spec"]["template"]["spec"])
    builders["job.yaml"] = yaml.safe_dump(job)
    return objects


def test_a_fault_within_the_job_template_is_found() -> None:
    as_root = in_builder(lambda pod: pod["securityContext"].update(runAsUser=0))
    assert safety.check_privileges(as_root) == ["Job smelt-build: may be root"]
    misspelt = in_builder(lambda pod: pod.update(nodeSelectors={}))
    assert "nodeSelectors" in schemas.check_kubernetes_kinds(misspelt)[0]


def test_every_check_has_a_fault_that_it_must_find() -> None:
    assert {fault.found_by for fault in BREAKS} == set(CHECKS)


def break_at(objects: Objects, at: str, to: Any) -> None:
    """Change one field; the object is found without the digest in its name."""
    title, _, path = at.partition(":")
    kind, _, name = title.partition(" ")
    holder: Any
    (holder,) = (
        item
        for item in objects
        if item["kind"] == kind
        and item["metadata"]["name"].startswith(name)
        and len(item["metadata"]["name"]) in (len(name), len(name) + 11)
    )
    *steps, last = [int(step) if step.isdecimal() else step for step in path.split(".")]
    for step in steps:
        holder = holder[step]
    if to is GONE:
        del holder[last]
    else:
        holder[last] = to
