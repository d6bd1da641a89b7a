"""GPU Feature Discovery's labels to a node class, and back to what a Pod asks for."""

import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.node_class import NodeClass
from services.controller.platform.kubernetes.gfd import (
    match_expressions,
    node_class_from_labels,
    node_selector,
)

H100 = {
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.family": "hopper",
    "nvidia.com/cuda.driver-version.full": "580.95.05",
}


@pytest.mark.parametrize(
    ("major", "minor", "generation"),
    [
        ("7", "5", "cuda-sm75"),
        ("9", "0", "cuda-sm90"),
        ("10", "3", "cuda-sm103"),
        ("12", "0", "cuda-sm120"),
    ],
)
def test_the_generation_is_the_two_numbers(major: str, minor: str, generation: str) -> None:
    labels = {"nvidia.com/gpu.compute.major": major, "nvidia.com/gpu.compute.minor": minor}
    assert node_class_from_labels(labels) == NodeClass(generation=generation)


def test_device_and_driver_are_known_and_memory_and_toolchain_are_not() -> None:
    assert node_class_from_labels(H100) == NodeClass(
        generation="cuda-sm90", device="NVIDIA-H100-80GB-HBM3", driver="580.95.05"
    )


def test_what_a_probe_finds_on_that_node_is_the_same_class() -> None:
    # As a probe rounds it: 79.1 GiB without what the driver keeps, where the label says 79.6.
    probed = NodeClass(
        generation="cuda-sm90",
        device="NVIDIA-H100-80GB-HBM3",
        memory_gib=79,
        driver="580.95.05",
        toolchain="0123456789abcdef",
    )
    known = node_class_from_labels(H100)
    assert known is not None
    assert probed.may_be(known)


def test_time_slicing_does_not_change_the_device() -> None:
    shared = H100 | {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED"}
    assert node_class_from_labels(shared) == node_class_from_labels(H100)


def test_a_mig_slice_is_a_device_of_its_own() -> None:
    slice_labels = H100 | {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"}
    assert node_class_from_labels(slice_labels) != node_class_from_labels(H100)


@pytest.mark.parametrize("labels", [{}, {"kubernetes.io/arch": "amd64"}])
def test_a_node_without_a_gpu_and_without_our_label_is_of_no_class(labels: dict[str, str]) -> None:
    assert node_class_from_labels(labels) is None


def test_a_cpu_node_is_what_our_label_says() -> None:
    labels = {"smelt.dev/generation": "cpu-x86_64-amx", "smelt.dev/device": "Xeon"}
    assert node_class_from_labels(labels) == NodeClass(generation="cpu-x86_64-amx", device="Xeon")


def test_a_gpu_is_never_taken_from_our_label() -> None:
    assert node_class_from_labels({"smelt.dev/generation": "cuda-sm90"}) is None
    assert node_class_from_labels({"smelt.dev/generation": "cuda-sm80"} | H100) == (
        node_class_from_labels(H100)
    )


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia.com/gpu.compute.major": "9"},
        {"nvidia.com/gpu.compute.major": "nine", "nvidia.com/gpu.compute.minor": "0"},
        {"smelt.dev/generation": "sm90"},
    ],
)
def test_a_label_that_cannot_be_read_is_refused(labels: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="expected"):
        node_class_from_labels(labels)


def test_a_pod_finds_the_node_by_what_the_node_was_known_by() -> None:
    known = node_class_from_labels(H100)
    assert known is not None
    assert node_selector(known).items() <= H100.items()
    for wanted in match_expressions(known):
        assert wanted["operator"] == "In"
        assert H100[wanted["key"]] in wanted["values"]


def test_a_pod_takes_a_time_sliced_device_too() -> None:
    known = node_class_from_labels(H100)
    assert known is not None
    (device, _) = match_expressions(known)
    assert device["values"] == ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-80GB-HBM3-SHARED"]


def test_of_a_pool_at_zero_only_the_generation_is_asked() -> None:
    sm120 = NodeClass(generation="cuda-sm120")
    assert node_selector(sm120) == {
        "nvidia.com/gpu.compute.major": "12",
        "nvidia.com/gpu.compute.minor": "0",
    }
    assert match_expressions(sm120) == []


def test_a_cpu_build_asks_for_our_label() -> None:
    cpu = NodeClass(generation="cpu-x86_64-amx", device="Xeon")
    assert node_selector(cpu) == {"smelt.dev/generation": "cpu-x86_64-amx"}
    assert match_expressions(cpu) == []
