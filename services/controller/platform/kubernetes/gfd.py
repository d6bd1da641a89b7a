"""Node labels to a NodeClass, and a NodeClass to what a Pod must ask for to land on it.

A GPU node is known by the labels of NVIDIA's GPU Feature Discovery. A CPU node is known only
by the label `smelt.dev/generation`, which an operator sets: Kubernetes itself knows no more of
a processor than its architecture.
"""

from collections.abc import Mapping
from typing import Any

from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.labels import GENERATION_LABEL
from services.contracts.hardware.node_class import NodeClass

MAJOR_LABEL = "nvidia.com/gpu.compute.major"
MINOR_LABEL = "nvidia.com/gpu.compute.minor"
PRODUCT_LABEL = "nvidia.com/gpu.product"
DRIVER_LABEL = "nvidia.com/cuda.driver-version.full"
GPU_RESOURCE = "nvidia.com/gpu"
# Time-slicing and MPS rename the product; engines do not care.
_SHARED = "-SHARED"


def node_class_from_labels(labels: Mapping[str, str]) -> NodeClass | None:
    """The class of a Kubernetes node; None for a node that no engine is made for.

    `nvidia.com/gpu.memory` is not read. It is NVML's total, which holds what the driver keeps
    for itself, and a device's own probe sees less (616 MiB on an H200): rounded to GiB the two
    differ for many products, and one node would be of two classes. The product's name
    differs for memory sizes.

    Raises:
        InvalidRequestError: a label's value is no generation, or no number.
    """
    # With one of them alone it is a GPU node whose labels are wrong, and no CPU node.
    if MAJOR_LABEL in labels or MINOR_LABEL in labels:
        return NodeClass(
            generation=str(_cuda_generation(labels)),
            device=labels.get(PRODUCT_LABEL, "").removesuffix(_SHARED),
            driver=labels.get(DRIVER_LABEL, ""),
        )
    declared = NodeClass.from_labels(labels)
    is_cpu = declared and Generation.parse(declared.generation).platform is Platform.CPU
    return declared if is_cpu else None


def _cuda_generation(labels: Mapping[str, str]) -> Generation:
    major = labels.get(MAJOR_LABEL, "")
    minor = labels.get(MINOR_LABEL, "")
    if not major.isdecimal() or not minor.isdecimal():
        raise InvalidRequestError(
            f"{MAJOR_LABEL}='{major}' and {MINOR_LABEL}='{minor}': expected two whole numbers, "
            "as GPU Feature Discovery sets them"
        )
    return Generation(platform=Platform.CUDA, major=int(major), minor=int(minor))


def node_selector(node_class: NodeClass) -> dict[str, str]:
    """Labels that every node of the class has, whatever else is known of it.

    Equality only, so that a cluster autoscaler finds the node group to grow from zero.
    """
    generation = Generation.parse(node_class.generation)
    if generation.platform is Platform.CPU:
        return {GENERATION_LABEL: node_class.generation}
    return {MAJOR_LABEL: str(generation.major), MINOR_LABEL: str(generation.minor)}


def match_expressions(node_class: NodeClass) -> list[dict[str, Any]]:
    """Node affinity terms for what else is known: engines are bound to device and driver.

    On another device of the same generation the compiler would make an engine for that one,
    and the wanted one would still be missing.
    """
    if Generation.parse(node_class.generation).platform is Platform.CPU:
        return []
    device = node_class.device
    driver = node_class.driver
    wanted = {
        PRODUCT_LABEL: [device, device + _SHARED] if device else [],
        DRIVER_LABEL: [driver] if driver else [],
    }
    return [
        {"key": key, "operator": "In", "values": values} for key, values in wanted.items() if values
    ]
