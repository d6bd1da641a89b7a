"""Settings in the manifests are settings of our processes, with values that they accept."""

from compiler_worker.settings import CompilerSettings
from services.contracts.errors import InvalidRequestError
from services.contracts.process.settings import ProcessSettings, read_settings
from services.controller.settings import ControllerSettings
from services.gateway.settings import GatewaySettings
from services.replica.settings import ReplicaSettings
from tests.integration.k8s.objects import Object, Objects, Pod, of_kind, pods

SETTINGS: dict[str, type[ProcessSettings]] = {
    "gateway": GatewaySettings,
    "controller": ControllerSettings,
    "fleet": ReplicaSettings,
    "builder": CompilerSettings,
}
# Named by each application of the Serve config.
GIVEN = {"fleet": {"model": "a", "version": 1}}


def check_settings(objects: Objects) -> list[str]:
    """Every SMELT_ variable of a pod is a setting of its process, and has a good value."""
    findings = []
    for pod in pods(objects):
        part = pod.labels["smelt.dev/part"]
        settings = SETTINGS[part]
        prefix = settings.env_prefix
        given = environment(pod, objects)
        known = {prefix + name.upper() for name in settings.model_fields}
        unknown = sorted(given.keys() - known)
        findings += [f"{pod.where}: {name} is no setting of the {part}" for name in unknown]
        fields = {k.removeprefix(prefix).lower(): v for k, v in given.items() if k in known}
        try:
            read_settings(settings, **fields, **GIVEN.get(part, {}))
        except InvalidRequestError as error:
            findings.append(f"{pod.where}: {error}")
    return findings


def environment(pod: Pod, objects: Objects) -> dict[str, str]:
    """Variables of the pod's first container that begin with SMELT_."""
    maps = {item["metadata"]["name"]: item["data"] for item in of_kind(objects, "ConfigMap")}
    container = pod.spec["containers"][0]
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= maps.get(source.get("configMapRef", {}).get("name"), {})
    for entry in container.get("env", []):
        found[entry["name"]] = entry.get("value") or _looked_up(entry, maps)
    return {name: value for name, value in found.items() if name.startswith("SMELT_")}


def _looked_up(entry: Object, maps: dict[str, dict[str, str]]) -> str:
    if "resourceFieldRef" in entry["valueFrom"]:
        return "1"  # a whole number, whatever the pod asks for
    reference = entry["valueFrom"]["configMapKeyRef"]
    return maps.get(reference["name"], {}).get(reference["key"], "")


def check_addresses(objects: Objects) -> list[str]:
    """Ports in settings are the ports that pods and Services show, and Services are found."""
    by_part = {pod.labels["smelt.dev/part"]: pod for pod in pods(objects)}
    gateway, controller = by_part["gateway"], by_part["controller"]
    said, told = environment(gateway, objects), environment(controller, objects)
    replica = environment(by_part["fleet"], objects)
    services = {
        f"{item['metadata']['name']}:{port['port']}"
        for item in of_kind(objects, "Service")
        for port in item["spec"]["ports"]
    }
    pairs = [
        (said["SMELT_GATEWAY_GRPC_PORT"], gateway.port_names()["grpc"]),
        (said["SMELT_GATEWAY_METRICS_PORT"], gateway.port_names()["metrics"]),
        (told["SMELT_CONTROLLER_LISTEN"], f"0.0.0.0:{controller.port_names()['fleet']}"),
        (told["SMELT_CONTROLLER_METRICS_PORT"], controller.port_names()["metrics"]),
    ]
    findings = [f"set {one}, declared {other}" for one, other in pairs if one != str(other)]
    called = (said["SMELT_GATEWAY_CONTROLLER"], replica["SMELT_REPLICA_CONTROLLER_ADDRESS"])
    return findings + [f"no Service {address}" for address in called if address not in services]


def check_graces(objects: Objects) -> list[str]:
    """A pod is given longer than its process takes to drain."""
    findings = []
    for pod in pods(objects):
        if pod.labels["smelt.dev/part"] == "gateway":
            said = environment(pod, objects)
            drain_s = sum(
                float(said[f"SMELT_GATEWAY_DRAIN_{name}_S"]) for name in ("NOTICE", "GRACE")
            )
        elif pod.labels.get("ray.io/node-type") == "worker":
            drain_s = REPLICA_DRAIN_S
        else:
            continue
        if pod.spec.get("terminationGracePeriodSeconds", 30) <= drain_s:
            findings.append(f"{pod.where}: killed before its drain of {drain_s:g} s is over")
    return findings


# services/replica/app.py: Serve waits so long for a replica that drains.
REPLICA_DRAIN_S = 40.0
