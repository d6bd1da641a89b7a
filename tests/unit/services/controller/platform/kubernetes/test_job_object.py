"""The Job of a build task: valid, on the right nodes, with the compiler's arguments."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from compiler_worker.arguments import parse_arguments
from services.contracts.hardware.node_class import NodeClass
from services.controller.interfaces import BuildTask
from services.controller.platform.kubernetes.job_object import TASK_LABEL, job_for
from services.controller.platform.kubernetes.job_template import JobTemplate, read_template

H100 = NodeClass(generation="cuda-sm90", device="NVIDIA-H100-80GB-HBM3", driver="580.95.05")
TASK = BuildTask(
    name="build-minilm-1-sm90-a1",
    model="minilm",
    version=3,
    node_class=H100,
    is_anywhere=False,
    key_digests=("0" * 64, "f" * 64),
    reason="a node of cuda-sm90 appeared",
)
SHIPPED = Path("k8s/base/builder-job.yaml")
GPU = "nvidia.com/gpu"


@pytest.fixture
def template(request: pytest.FixtureRequest) -> JobTemplate:
    return replace(read_template(request.config.rootpath / SHIPPED), placements={})


def _pod(job: dict[str, Any]) -> dict[str, Any]:
    pod = job["spec"]["template"]["spec"]
    assert isinstance(pod, dict)
    return pod


def _validate(job: dict[str, Any]) -> None:
    kubernetes_validate.validate(job, "1.34", strict=True)


@pytest.mark.parametrize(
    "task",
    [
        TASK,
        TASK.model_copy(update={"is_anywhere": True, "key_digests": ()}),
        TASK.model_copy(update={"node_class": NodeClass(generation="cuda-sm120"), "reason": ""}),
        TASK.model_copy(
            update={"node_class": NodeClass(generation="cpu-x86_64-amx", device="Xeon")}
        ),
        TASK.model_copy(update={"model": "m" * 100}),
        TASK.model_copy(update={"model": "m" * 62 + "-x", "name": "b" * 52}),
    ],
)
def test_every_job_is_valid(task: BuildTask, template: JobTemplate) -> None:
    _validate(job_for(task, template))


def test_validation_can_fail(template: JobTemplate) -> None:
    job = job_for(TASK, template)
    _pod(job)["nodeselector"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        _validate(job)


def test_the_job_is_named_labelled_and_explained(template: JobTemplate) -> None:
    job = job_for(TASK, template)
    assert job["metadata"]["name"] == TASK.name
    for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
        assert labels[TASK_LABEL] == TASK.name
        assert labels["smelt.dev/generation"] == "cuda-sm90"
        assert labels["smelt.dev/part"] == "builder", "the template's own label"
    annotations = job["metadata"]["annotations"]
    assert annotations["smelt.dev/reason"] == "a node of cuda-sm90 appeared"
    assert NodeClass.model_validate_json(annotations["smelt.dev/node-class"]) == H100


def test_a_long_models_name_is_whole_in_the_annotation(template: JobTemplate) -> None:
    metadata = job_for(TASK.model_copy(update={"model": "m" * 62 + "-x"}), template)["metadata"]
    assert metadata["labels"]["smelt.dev/model"] == "m" * 62
    assert metadata["annotations"]["smelt.dev/model"] == "m" * 62 + "-x"


def test_the_compiler_understands_its_arguments(template: JobTemplate) -> None:
    container = _pod(job_for(TASK, template))["containers"][0]
    assert container["command"] == ["python", "-m", "compiler_worker"]
    arguments = parse_arguments(container["args"])
    assert (arguments.command, arguments.target, arguments.version) == ("build", "minilm", 3)
    assert [str(g) for g in arguments.wanted.generations] == ["cuda-sm90"]
    assert arguments.wanted.keys == TASK.key_digests


def test_a_build_for_a_device_goes_to_one_and_gets_it(template: JobTemplate) -> None:
    pod = _pod(job_for(TASK, template))
    assert pod["nodeSelector"] == {
        "kubernetes.io/arch": "amd64",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
    }
    assert {"key": GPU, "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    assert pod["containers"][0]["resources"]["limits"][GPU] == "1"
    (term,) = _terms(pod)
    assert {e["key"] for e in term["matchExpressions"]} == {
        "nvidia.com/gpu.product",
        "nvidia.com/cuda.driver-version.full",
    }


def _terms(pod: dict[str, Any]) -> list[dict[str, Any]]:
    affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms: list[dict[str, Any]] = affinity["nodeSelectorTerms"]
    return terms


def test_a_build_for_anywhere_asks_for_nothing_of_the_kind(template: JobTemplate) -> None:
    greedy = job_for(TASK, template)["spec"]["template"]["spec"]["containers"][0]["resources"]
    template.job["spec"]["template"]["spec"]["containers"][0]["resources"] = greedy
    pod = _pod(job_for(TASK.model_copy(update={"is_anywhere": True}), template))
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert GPU not in pod["containers"][0]["resources"]["limits"]
    assert "affinity" not in pod
    assert "tolerations" not in pod


def test_a_cpu_build_goes_to_its_nodes_without_a_gpu(template: JobTemplate) -> None:
    pod = _pod(
        job_for(
            TASK.model_copy(update={"node_class": NodeClass(generation="cpu-x86_64-amx")}), template
        )
    )
    assert pod["nodeSelector"]["smelt.dev/generation"] == "cpu-x86_64-amx"
    assert GPU not in pod["containers"][0]["resources"]["limits"]


def test_each_alternative_of_the_templates_affinity_gets_ours_too(template: JobTemplate) -> None:
    zones = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
        for zone in ("a", "b")
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones}}
    _pod(template.job)["affinity"] = {"nodeAffinity": required}
    for _ in range(2):  # the template must not grow
        job = job_for(TASK, template)
        _validate(job)
        keys = [[e["key"] for e in term["matchExpressions"]] for term in _terms(_pod(job))]
        device, driver = "nvidia.com/gpu.product", "nvidia.com/cuda.driver-version.full"
        assert keys == [["zone", device, driver]] * 2


def test_a_generations_own_placement_is_used(template: JobTemplate) -> None:
    placement = {
        "nodeSelector": {"pool": "hopper"},
        "tolerations": [{"key": GPU, "operator": "Exists"}],
        "resources": {"limits": {GPU: "2"}},
    }
    placed = replace(template, placements={"cuda-sm90": placement})
    pod = _pod(job_for(TASK, placed))
    assert pod["nodeSelector"].items() >= {"pool": "hopper", "kubernetes.io/arch": "amd64"}.items()
    assert pod["tolerations"] == placement["tolerations"]
    assert pod["containers"][0]["resources"] == placement["resources"]
    other = _pod(
        job_for(TASK.model_copy(update={"node_class": NodeClass(generation="cuda-sm80")}), placed)
    )
    assert "pool" not in other["nodeSelector"]


@pytest.mark.parametrize("sm", ["80", "89", "90", "100", "120"])
def test_the_shipped_placements_make_valid_jobs(
    tmp_path: Path, pytestconfig: pytest.Config, sm: str
) -> None:
    """In one folder, as their ConfigMap is mounted."""
    builder = pytestconfig.rootpath / f"k8s/components/gpu-sm{sm}/builder.yaml"
    shutil.copy(builder, tmp_path / f"cuda-sm{sm}.yaml")
    shutil.copy(pytestconfig.rootpath / SHIPPED, tmp_path / "job.yaml")
    task = TASK.model_copy(update={"node_class": NodeClass(generation=f"cuda-sm{sm}")})
    job = job_for(task, read_template(tmp_path / "job.yaml"))
    _validate(job)
    pod = _pod(job)
    assert pod["containers"][0]["resources"]["limits"][GPU] == "1"
    assert [toleration["key"] for toleration in pod["tolerations"]] == [GPU]
    assert pod["nodeSelector"]["nvidia.com/gpu.compute.major"] == sm[:-1]


def test_an_image_given_wins(template: JobTemplate) -> None:
    assert _pod(job_for(TASK, template, "own:1"))["containers"][0]["image"] == "own:1"
    assert _pod(job_for(TASK, template))["containers"][0]["image"] == "smelt-compiler"


@pytest.mark.parametrize(("num_keys", "hours"), [(1, 4), (2, 5), (10, 13), (0, 15)])
def test_the_deadline_grows_with_the_keys_and_a_plan_may_have_many(
    num_keys: int, hours: int, template: JobTemplate
) -> None:
    task = TASK.model_copy(update={"key_digests": tuple(f"{n:064d}" for n in range(num_keys))})
    assert job_for(task, template)["spec"]["activeDeadlineSeconds"] == hours * 3600
    assert template.job["spec"]["activeDeadlineSeconds"] == 4 * 3600
