"""What KubeRay's operator refuses and no schema says, and what Ray Serve makes of the config."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from services.controller.interfaces import DeploymentKey
from services.controller.platform.ray.replica_fleet import application_name
from tests.integration.k8s.network import DATA_PORTS
from tests.integration.k8s.objects import Object, Objects, ray_service

MAX_RAY_SERVICE_NAME = 47
UPGRADES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")
GENERATION = "smelt.dev/generation"
PORT_RANGE = "net.ipv4.ip_local_port_range"
# Those for which Ray takes any port unless told.
RAY_PORTS = (
    "node-manager-port",
    "object-manager-port",
    "runtime-env-agent-port",
    "dashboard-agent-grpc-port",
)
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def check_ray_service(objects: Objects) -> list[str]:
    """Rules of the operator's own validation."""
    service = ray_service(objects)
    return [*_service_rules(service), *_cluster_rules(service["spec"]["rayClusterConfig"])]


def _service_rules(service: Object) -> Iterator[str]:
    name, spec = service["metadata"]["name"], service["spec"]
    if len(name) > MAX_RAY_SERVICE_NAME or not _DNS_LABEL.fullmatch(name):
        yield f"name '{name}' is no DNS label of at most {MAX_RAY_SERVICE_NAME}"
    if "ray.io/initializing-timeout" in service["metadata"].get("annotations", {}):
        yield "an initializing-timeout: one generation without nodes would end all"
    if spec["upgradeStrategy"]["type"] not in UPGRADES:
        yield f"upgradeStrategy {spec['upgradeStrategy']} is none of {UPGRADES}"
    if spec["rayClusterDeletionDelaySeconds"] < 0:
        yield "rayClusterDeletionDelaySeconds is negative"


def _cluster_rules(cluster: Object) -> Iterator[str]:
    head, workers = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    ports = {p["name"] for p in _ray_container(head)["ports"]}
    if not {"serve", "metrics"} <= ports:
        yield f"the head has no ports named serve and metrics: {sorted(ports)}"
    if head.get("headService", {}).get("metadata", {}).get("name"):
        yield "headService has a name"
    for group in (head, *workers):
        where, parameters = group.get("groupName", "head"), group.get("rayStartParams", {})
        if "labels" in parameters:
            yield f"{where}: rayStartParams.labels; use the group's labels"
        if group.get("resources") and {"num-cpus", "num-gpus", "memory"} & parameters.keys():
            yield f"{where}: resources both in rayStartParams and in the group"
    # Ray wants tokens unless told otherwise, and KubeRay knows of them only by this.
    if cluster.get("authOptions", {}).get("mode") != "token":
        yield "KubeRay would not know the token that Ray asks for"
    names = [group["groupName"] for group in workers]
    if len(set(names)) != len(names):
        yield f"two groups of one name: {names}"
    yield from _autoscaler_rules(cluster)


def _autoscaler_rules(cluster: Object) -> Iterator[str]:
    if not cluster.get("enableInTreeAutoscaling"):
        yield "no autoscaler: groups at zero would stay there"
    if cluster["autoscalerOptions"].get("version") != "v2":
        yield "autoscaler v1 knows no label selectors"
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        where = group.get("groupName", "head")
        if group["template"]["spec"].get("restartPolicy", "Never") != "Never":
            yield f"{where}: autoscaler v2 wants restartPolicy Never or none"
        if group.get("suspend"):
            yield f"{where}: a group cannot be suspended beside the autoscaler"
        if any(e["name"] == "RAY_enable_autoscaler_v2" for e in _ray_container(group)["env"]):
            yield f"{where}: RAY_enable_autoscaler_v2 is set beside autoscalerOptions.version"
        if not 0 <= group.get("minReplicas", 0) <= group.get("maxReplicas", 1):
            yield f"{where}: minReplicas above maxReplicas"


def check_ray_ports(objects: Objects) -> list[str]:
    """Ray's own ports are fixed, and none is where the replicas' data ports are."""
    cluster = ray_service(objects)["spec"]["rayClusterConfig"]
    findings = []
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        where = group.get("groupName", "head")
        parameters = group["rayStartParams"]
        ports = {name: int(parameters.get(name, 0)) for name in RAY_PORTS}
        if not all(0 < port < DATA_PORTS[0] for port in ports.values()):
            findings.append(f"{where}: {ports}")
    for group in cluster["workerGroupSpecs"]:
        sysctls = group["template"]["spec"]["securityContext"].get("sysctls", [])
        if sysctls != [{"name": PORT_RANGE, "value": "{} {}".format(*DATA_PORTS)}]:
            findings.append(f"{group['groupName']}: data ports are not {DATA_PORTS}: {sysctls}")
    return findings


def check_generations(objects: Objects) -> list[str]:
    """A group's label, what its nodes are selected by and what its pods ask for agree."""
    findings = []
    for group in ray_service(objects)["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        generation, pod = group["labels"][GENERATION], group["template"]["spec"]
        selector = pod["nodeSelector"]
        gpus = _ray_container(group)["resources"]["limits"].get("nvidia.com/gpu")
        if generation.startswith("cuda-"):
            major = selector.get("nvidia.com/gpu.compute.major", "?")
            said = f"cuda-sm{major}{selector.get('nvidia.com/gpu.compute.minor', '?')}"
            is_right = gpus == "1" and any(
                t["key"] == "nvidia.com/gpu" for t in pod.get("tolerations", [])
            )
        else:
            said, is_right = selector.get(GENERATION), gpus is None
        if said != generation or not is_right:
            findings.append(f"group {group['groupName']}: {generation}, {selector}, {gpus} GPUs")
    return findings


def serve_config(objects: Objects) -> Any:
    """The Serve config file inside the RayService."""
    return yaml.safe_load(ray_service(objects)["spec"]["serveConfigV2"])


def check_applications(objects: Objects) -> list[str]:
    """Applications have the controller's names, no route, and a group that can hold them."""
    config = serve_config(objects)
    groups = ray_service(objects)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    generations = {group["labels"][GENERATION] for group in groups if group["maxReplicas"]}
    findings, names = [], [app["name"] for app in config["applications"]]
    if config["proxy_location"] != "Disabled":
        findings.append("Serve's proxies run, and no request comes through them")
    if not names or len(set(names)) != len(names):
        findings.append(f"names of applications: {names}")
    for app in config["applications"]:
        (deployment,) = app["deployments"]
        options = deployment["ray_actor_options"]
        generation = options["label_selector"][GENERATION]
        args = app["args"]
        key = DeploymentKey(args["model"], args["version"], generation)
        if app["name"] != application_name(key):
            findings.append(f"{app['name']}: the controller calls it {application_name(key)}")
        if app["route_prefix"] is not None:
            findings.append(f"{app['name']}: has a route")
        if generation not in generations:
            findings.append(f"{app['name']}: no worker group is {generation}")
        if options["num_gpus"] != int(generation.startswith("cuda-")):
            findings.append(f"{app['name']}: {options['num_gpus']} GPUs")
    return findings


def _ray_container(group: Object) -> Object:
    container: Object = group["template"]["spec"]["containers"][0]
    return container
