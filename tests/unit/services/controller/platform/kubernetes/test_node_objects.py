"""What Node and RayService objects say, and the pools that come of it."""

import logging
from typing import Any

import pytest

from services.contracts.hardware.node_class import NodeClass
from services.controller.platform.kubernetes.node_objects import (
    ObservedNode,
    observed_node,
    pools_of,
    worker_group_classes,
)

SM90 = NodeClass(generation="cuda-sm90")
H100 = NodeClass(generation="cuda-sm90", device="NVIDIA-H100-80GB-HBM3")


def _node(**changes: Any) -> dict[str, Any]:
    labels = {"nvidia.com/gpu.compute.major": "9", "nvidia.com/gpu.compute.minor": "0"}
    ready = {"type": "Ready", "status": "True"}
    pressure = {"type": "MemoryPressure", "status": "False"}
    node: dict[str, Any] = {
        "metadata": {"name": "a", "labels": labels},
        "status": {"conditions": [pressure, ready], "allocatable": {"nvidia.com/gpu": "8"}},
    }
    return node | changes


def test_a_ready_node_has_no_hindrance() -> None:
    assert observed_node(_node()) == ObservedNode(node_class=SM90)


@pytest.mark.parametrize(
    ("changes", "unschedulable_reason"),
    [
        ({"spec": {"unschedulable": True}}, "cordoned"),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, "not ready"),
        ({"status": {}}, "not ready"),
        (
            {
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "allocatable": {"nvidia.com/gpu": "0"},
                }
            },
            "no GPU allocatable",
        ),
    ],
)
def test_a_node_that_takes_no_new_work_says_why(
    changes: dict[str, Any], unschedulable_reason: str
) -> None:
    observed = observed_node(_node(**changes))
    assert observed == ObservedNode(node_class=SM90, unschedulable_reason=unschedulable_reason)


def test_a_node_that_is_being_deleted_takes_no_new_work() -> None:
    node = _node()
    node["metadata"]["deletionTimestamp"] = "2026-11-21T05:00:00Z"
    assert observed_node(node) == ObservedNode(
        node_class=SM90, unschedulable_reason="being deleted"
    )


def test_a_node_with_a_wrong_label_is_left_out_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    labels = {"nvidia.com/gpu.compute.major": "x", "nvidia.com/gpu.compute.minor": "0"}
    with caplog.at_level(logging.ERROR):
        assert observed_node({"metadata": {"name": "odd", "labels": labels}}) is None
    assert "node 'odd' is left out" in caplog.text


def _service(*groups: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"name": "smelt"},
        "spec": {"rayClusterConfig": {"workerGroupSpecs": list(groups)}},
    }


def test_a_worker_group_at_zero_counts_by_its_ray_labels() -> None:
    group = {"groupName": "sm90", "minReplicas": 0, "labels": {"smelt.dev/generation": "cuda-sm90"}}
    assert worker_group_classes(_service(group)) == {"smelt/sm90": SM90}


def test_a_worker_group_without_labels_counts_by_the_nodes_it_asks_for() -> None:
    selector = {"nvidia.com/gpu.compute.major": "12", "nvidia.com/gpu.compute.minor": "0"}
    group = {"groupName": "b", "template": {"spec": {"nodeSelector": selector}}}
    assert worker_group_classes(_service(group)) == {"smelt/b": NodeClass(generation="cuda-sm120")}


def test_a_cpu_groups_ray_label_is_the_least_and_no_class() -> None:
    least = {"groupName": "cpu", "labels": {"smelt.dev/generation": "cpu-x86_64-v3"}}
    selector = {"smelt.dev/generation": "cpu-x86_64-amx"}
    exact = {"groupName": "amx", "template": {"spec": {"nodeSelector": selector}}} | {
        "labels": {"smelt.dev/generation": "cpu-x86_64-v3"}
    }
    assert worker_group_classes(_service(least, exact)) == {
        "smelt/amx": NodeClass(generation="cpu-x86_64-amx")
    }


def test_a_group_that_may_not_grow_is_no_pool() -> None:
    labels = {"smelt.dev/generation": "cuda-sm90"}
    assert worker_group_classes(_service({"maxReplicas": 0, "labels": labels})) == {}


def test_a_group_with_a_wrong_label_leaves_the_others_be(caplog: pytest.LogCaptureFixture) -> None:
    wrong = {"groupName": "w", "labels": {"smelt.dev/generation": "hopper"}}
    right = {"groupName": "r", "labels": {"smelt.dev/generation": "cuda-sm90"}}
    assert worker_group_classes(_service(wrong, right)) == {"smelt/r": SM90}
    assert "worker group 'smelt/w' is left out" in caplog.text


def test_a_rayservice_without_groups_has_none() -> None:
    assert worker_group_classes({"metadata": {"name": "smelt"}}) == {}


def test_nodes_are_grouped_and_only_those_that_take_work_count() -> None:
    nodes = {
        "b": ObservedNode(node_class=H100, unschedulable_reason="cordoned"),
        "a": ObservedNode(node_class=H100),
        "c": ObservedNode(node_class=NodeClass(generation="cuda-sm120")),
    }
    pools = pools_of(nodes, [])
    assert {p.node_class.generation: (p.num_nodes, p.names) for p in pools} == {
        "cuda-sm90": (1, ("a", "b (cordoned)")),
        "cuda-sm120": (1, ("c",)),
    }
    assert {p.source for p in pools} == {"kubernetes"}


def test_a_class_whose_nodes_are_all_away_stays_known() -> None:
    (pool,) = pools_of({"a": ObservedNode(node_class=H100, unschedulable_reason="not ready")}, [])
    assert (pool.num_nodes, pool.names) == (0, ("a (not ready)",))


def test_a_group_is_a_pool_of_its_own_only_without_nodes() -> None:
    groups = [("s/one", SM90), ("s/two", SM90), ("s/new", NodeClass(generation="cuda-sm100"))]
    pools = pools_of({"a": ObservedNode(node_class=H100)}, groups)
    found = {(p.node_class.generation, p.num_nodes) for p in pools}
    assert found == {("cuda-sm90", 1), ("cuda-sm100", 0)}
    assert len(pools) == 2
    at_zero = {p.node_class.generation: p.names for p in pools_of({}, groups)}
    assert at_zero == {"cuda-sm90": ("s/one", "s/two"), "cuda-sm100": ("s/new",)}


def test_the_order_of_pools_does_not_depend_on_the_order_of_events() -> None:
    nodes = {"a": ObservedNode(node_class=H100), "b": ObservedNode(node_class=SM90)}
    backwards = dict(reversed(list(nodes.items())))
    assert pools_of(nodes, []) == pools_of(backwards, [])
