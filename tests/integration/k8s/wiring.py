"""What one object says of another holds: selectors, ports, names, rights."""

from collections.abc import Iterator
from typing import Any

from tests.integration.k8s.objects import (
    Object,
    Objects,
    Pod,
    config_map,
    is_selected,
    of_kind,
    pods,
    title,
)

# Made by whoever runs the cluster; k8s/README.md says how.
GIVEN_SECRETS = {"smelt-store", "smelt-tls"}
# By whom the controller's model servers are known; it makes them where it has the rights.
MODEL_SERVER = {"smelt.dev/part": "model-server"}
# Ray's agent on each node: no container names it.
RAY_AGENT_PORT = 52365


def check_selectors(objects: Objects) -> list[str]:
    """Whatever selects pods selects some."""
    findings = []
    made = [MODEL_SERVER, *(pod.labels for pod in pods(objects))]
    for where, selector in _selectors(objects):
        if not any(is_selected(labels, selector) for labels in made):
            findings.append(f"{where}: no pod has {selector}")
    return findings + [
        f"{title(item)}: does not select its own pods"
        for item in of_kind(objects, "Deployment")
        if not is_selected(item["spec"]["template"]["metadata"]["labels"], item["spec"]["selector"])
    ]


def _selectors(objects: Objects) -> Iterator[tuple[str, Object]]:
    for item in objects:
        spec = item.get("spec", {})
        match item["kind"]:
            case "Service":
                yield title(item), {"matchLabels": spec["selector"]}
            case "PodDisruptionBudget" | "PodMonitor":
                yield title(item), spec["selector"]
            case "NetworkPolicy":
                yield title(item), spec["podSelector"]
                rules = [*spec.get("ingress", []), *spec.get("egress", [])]
                for peer in (p for rule in rules for p in rule.get("from", rule.get("to", []))):
                    # With a namespace it is about pods of others.
                    if "namespaceSelector" not in peer:
                        yield title(item), peer["podSelector"]
            case _:
                pass


def check_ports(objects: Objects) -> list[str]:
    """Services, probes and monitors name ports that the pods have."""
    return [*_service_ports(objects), *_probe_ports(objects), *_monitored_ports(objects)]


def _service_ports(objects: Objects) -> Iterator[str]:
    for item in of_kind(objects, "Service"):
        for pod in _selected(objects, {"matchLabels": item["spec"]["selector"]}):
            for port in item["spec"]["ports"]:
                if port["targetPort"] not in pod.port_names():
                    yield f"{title(item)}: {pod.where} has no port {port['targetPort']}"


def _monitored_ports(objects: Objects) -> Iterator[str]:
    for item in of_kind(objects, "PodMonitor"):
        for pod in _selected(objects, item["spec"]["selector"]):
            for endpoint in item["spec"]["podMetricsEndpoints"]:
                if endpoint["port"] not in pod.port_names():
                    yield f"{title(item)}: {pod.where} has no port {endpoint['port']}"


def _probe_ports(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        for container in pod.containers:
            for kind in ("readinessProbe", "livenessProbe", "startupProbe"):
                for port in _asked(container.get(kind, {})):
                    known = {*pod.port_names(), *pod.port_names().values()}
                    if port not in known | ({RAY_AGENT_PORT} if pod.is_ray else set()):
                        yield f"{pod.where}: {kind} asks port {port}, which no container has"


def _asked(probe: Object) -> list[Any]:
    return [probe[how]["port"] for how in ("grpc", "httpGet", "tcpSocket") if how in probe]


def _selected(objects: Objects, selector: Object) -> list[Pod]:
    return [pod for pod in pods(objects) if is_selected(pod.labels, selector)]


def check_routes(objects: Objects) -> list[str]:
    """A route's Gateway, listener, host name, Services and their ports exist."""
    services = {s["metadata"]["name"]: s["spec"]["ports"] for s in of_kind(objects, "Service")}
    gateways = {g["metadata"]["name"]: g["spec"]["listeners"] for g in of_kind(objects, "Gateway")}
    findings = []
    for route in of_kind(objects, "GRPCRoute", "HTTPRoute"):
        for parent in route["spec"]["parentRefs"]:
            listeners = {one["name"]: one for one in gateways.get(parent["name"], [])}
            listener = listeners.get(parent["sectionName"])
            if listener is None:
                findings.append(f"{title(route)}: no Gateway {parent}")
            elif {listener.get("hostname")} != set(route["spec"].get("hostnames", [None])):
                findings.append(f"{title(route)}: not the host name of its listener")
        findings += [
            f"{title(route)}: no Service {backend}"
            for rule in route["spec"]["rules"]
            for backend in rule["backendRefs"]
            if backend["port"] not in [p["port"] for p in services.get(backend["name"], [])]
        ]
    return findings


def check_references(objects: Objects) -> list[str]:
    """ConfigMaps and their keys, Secrets, volumes and accounts that pods name exist."""
    maps = {item["metadata"]["name"]: item["data"] for item in of_kind(objects, "ConfigMap")}
    names = {
        "ServiceAccount": {i["metadata"]["name"] for i in of_kind(objects, "ServiceAccount")},
        "ConfigMap": set(maps),
        "Secret": GIVEN_SECRETS,
        "PersistentVolumeClaim": {
            i["metadata"]["name"] for i in of_kind(objects, "PersistentVolumeClaim")
        },
    }
    findings = []
    for pod in pods(objects):
        for kind, name in _referred(pod):
            if name not in names[kind]:
                findings.append(f"{pod.where}: no {kind} '{name}'")
        findings += [
            f"{pod.where}: ConfigMap '{ref['name']}' has no key {ref['key']}"
            for ref in (e.get("configMapKeyRef") for c in pod.containers for e in _sources(c))
            if ref and ref["key"] not in maps.get(ref["name"], {})
        ]
        volumes = {volume["name"] for volume in pod.spec.get("volumes", [])}
        mounts = {m["name"] for c in pod.containers for m in c.get("volumeMounts", [])}
        if volumes != mounts:
            findings.append(f"{pod.where}: volumes {volumes} and mounts {mounts} differ")
    return findings


def _sources(container: Object) -> list[Object]:
    sources = [entry["valueFrom"] for entry in container.get("env", []) if "valueFrom" in entry]
    return [source for source in sources if "resourceFieldRef" not in source]


def _referred(pod: Pod) -> Iterator[tuple[str, str]]:
    if account := pod.spec.get("serviceAccountName"):
        yield "ServiceAccount", account
    for source in (one for c in pod.containers for one in [*c.get("envFrom", []), *_sources(c)]):
        for key, reference in source.items():
            yield ("Secret" if key.startswith("secret") else "ConfigMap"), reference["name"]
    for volume in pod.spec.get("volumes", []):
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"]
        if "persistentVolumeClaim" in volume:
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]


def check_rights(objects: Objects) -> list[str]:
    """Bindings bind roles and accounts that exist; the controller has what it uses, no more."""
    findings = []
    named = {(i["kind"], i["metadata"]["name"]): i for i in objects}
    granted: dict[tuple[str, str], set[str]] = {}
    for binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        role = named.get((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
        for subject in binding["subjects"]:
            account = named.get((subject["kind"], subject["name"]))
            if account is None or account["metadata"]["namespace"] != subject["namespace"]:
                findings.append(f"{title(binding)}: no such account: {subject}")
        if role is None:
            findings.append(f"{title(binding)}: no such role: {binding['roleRef']}")
            continue
        for rule in role["rules"]:
            for resource in rule["resources"]:
                granted[rule["apiGroups"][0], resource] = set(rule["verbs"])
    runs_servers = "SMELT_CONTROLLER_SERVE_APPS" in config_map(objects, "smelt-controller")
    needed = NEEDED_RIGHTS | (SERVER_RIGHTS if runs_servers else {})
    if granted != needed:
        findings.append(f"the controller may {granted}, and needs {needed}")
    return findings


# services/controller/platform/kubernetes: nodes.py reads nodes and worker groups, jobs.py Jobs.
NEEDED_RIGHTS = {
    ("", "nodes"): {"list", "watch"},
    ("ray.io", "rayservices"): {"list", "watch"},
    ("", "pods"): {"list"},
    ("", "events"): {"list"},
    ("batch", "jobs"): {"create", "get", "list", "patch", "delete"},
}
# The same folder's servers.py, where an overlay lists the component model-servers.
SERVER_RIGHTS = {
    ("apps", "deployments"): {"create", "list", "delete"},
    ("", "services"): {"create", "list", "delete"},
}
