"""Who may speak to whom, worked out from the NetworkPolicies as a cluster would."""

from dataclasses import dataclass

from tests.integration.k8s.objects import Object, Objects, is_selected, of_kind

NAMESPACE = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class Place:
    """A pod by its labels, in a namespace; or an address outside, with neither."""

    labels: tuple[tuple[str, str], ...] = ()
    namespace: str = "smelt"

    @property
    def is_outside(self) -> bool:
        return not self.labels


def part(name: str) -> Place:
    """A pod of ours."""
    return Place((("smelt.dev/part", name),))


OUTSIDE = Place(namespace="")
PROMETHEUS = Place((("app.kubernetes.io/name", "prometheus"),), "monitoring")
KUBERAY = Place((("app.kubernetes.io/name", "kuberay-operator"),), "default")
STRANGER = Place((("app", "other"),), "other")
DNS = Place((("k8s-app", "kube-dns"),), "kube-system")
GATEWAY, CONTROLLER, FLEET, BUILDER = map(part, ("gateway", "controller", "fleet", "builder"))
DATA_PORTS = (53000, 60999)
NEEDED = [
    (STRANGER, GATEWAY, 8001),
    (PROMETHEUS, GATEWAY, 8002),
    (PROMETHEUS, CONTROLLER, 8004),
    (PROMETHEUS, FLEET, 8080),
    (PROMETHEUS, FLEET, 44217),
    (PROMETHEUS, FLEET, 44227),
    (GATEWAY, CONTROLLER, 8003),
    (FLEET, CONTROLLER, 8003),
    (GATEWAY, FLEET, DATA_PORTS[0]),
    (GATEWAY, FLEET, DATA_PORTS[1]),
    (FLEET, FLEET, 6379),
    (FLEET, FLEET, 10002),
    (KUBERAY, FLEET, 8265),
    (CONTROLLER, OUTSIDE, 443),
    (CONTROLLER, OUTSIDE, 6443),
    (FLEET, OUTSIDE, 443),
    (FLEET, OUTSIDE, 6443),
    (BUILDER, OUTSIDE, 443),
    *((one, DNS, 53) for one in (GATEWAY, CONTROLLER, FLEET, BUILDER)),
]
# Whoever reaches Ray's own ports can run any code there.
FORBIDDEN = [
    *((STRANGER, FLEET, port) for port in (6379, 8265, 10001, 52365, DATA_PORTS[0])),
    *((GATEWAY, FLEET, port) for port in (6379, 6380, 8265, 10001, 10002, 52365)),
    (BUILDER, FLEET, 8265),
    (BUILDER, CONTROLLER, 8003),
    (STRANGER, CONTROLLER, 8003),
    (STRANGER, GATEWAY, 8002),
    (GATEWAY, OUTSIDE, 443),
    (STRANGER, BUILDER, 8080),
    (CONTROLLER, FLEET, 8265),
]


def check_network(objects: Objects) -> list[str]:
    """What is needed is allowed, and what must not be is not."""
    policies = [item["spec"] for item in of_kind(objects, "NetworkPolicy")]
    missing = [f"cut off: {flow}" for flow in NEEDED if not is_allowed(policies, *flow)]
    return missing + [f"open: {flow}" for flow in FORBIDDEN if is_allowed(policies, *flow)]


def is_allowed(policies: Objects, source: Place, target: Place, port: int) -> bool:
    """Whether a TCP connection gets through; policies speak for our namespace alone."""
    leaves = source.namespace != "smelt" or _passes(policies, "egress", source, target, port)
    return leaves and (
        target.namespace != "smelt" or _passes(policies, "ingress", target, source, port)
    )


def _passes(policies: Objects, way: str, own: Place, peer: Place, port: int) -> bool:
    concerned = [
        policy
        for policy in policies
        if way.capitalize() in policy["policyTypes"]
        and is_selected(dict(own.labels), policy["podSelector"])
    ]
    rules = [rule for policy in concerned for rule in policy.get(way, [])]
    peers = "from" if way == "ingress" else "to"
    return not concerned or any(
        _has_port(rule, port) and _has_peer(rule.get(peers), peer) for rule in rules
    )


def _has_port(rule: Object, port: int) -> bool:
    return "ports" not in rule or any(
        p["protocol"] == "TCP" and p["port"] <= port <= p.get("endPort", p["port"])
        for p in rule["ports"]
    )


def _has_peer(peers: Objects | None, place: Place) -> bool:
    if peers is None:
        return True
    return not place.is_outside and any(_is_peer(peer, place) for peer in peers)


def _is_peer(peer: Object, place: Place) -> bool:
    if "namespaceSelector" in peer:
        is_there = is_selected({NAMESPACE: place.namespace}, peer["namespaceSelector"])
    else:
        is_there = place.namespace == "smelt"
    return is_there and is_selected(dict(place.labels), peer.get("podSelector", {}))
