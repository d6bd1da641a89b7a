"""The Job template of the manifests, filled in by the controller's own code."""

from pathlib import Path

import pytest
from lightkube.resources.batch_v1 import Job

from services.contracts.hardware.node_class import NodeClass
from services.controller.interfaces import BuildTask
from services.controller.platform.kubernetes.job_object import job_for
from services.controller.platform.kubernetes.job_template import (
    JobTemplate,
    compiler_container,
    read_template,
    refuse_unknown_fields,
)
from services.controller.platform.kubernetes.node_objects import worker_group_classes
from tests.integration.k8s.objects import Object, builder_job, config_map, ray_service
from tests.integration.k8s.ray_rules import GENERATION
from tests.integration.k8s.rendering import K8S, OVERLAYS, render
from tests.integration.k8s.schemas import check_kubernetes_kinds
from tests.process_server import forked_children

__all__ = ["forked_children"]  # a fixture

pytestmark = pytest.mark.usefixtures("forked_children")

IMAGE = "registry.example.com/smelt-compiler:1"
PRODUCTION = K8S / "overlays" / "production"


@pytest.fixture
def template(tmp_path: Path) -> JobTemplate:
    """The template as the controller finds it where its ConfigMap is mounted."""
    for name, text in config_map(render(PRODUCTION), "smelt-builders").items():
        (tmp_path / name).write_text(text)
    return read_template(tmp_path / "job.yaml")


def generations() -> list[str]:
    groups = ray_service(render(PRODUCTION))["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    return [group["labels"][GENERATION] for group in groups]


def filled(template: JobTemplate, generation: str, *, is_anywhere: bool = False) -> Object:
    task = BuildTask(
        name="minilm-1",
        model="minilm",
        version=1,
        node_class=NodeClass(generation=generation),
        is_anywhere=is_anywhere,
    )
    return job_for(task, template, IMAGE)


def test_a_build_runs_where_the_replicas_of_its_generation_run(template: JobTemplate) -> None:
    groups = ray_service(render(PRODUCTION))["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert len(groups) > 1
    for group in groups:
        job = filled(template, group["labels"][GENERATION])
        mine, theirs = job["spec"]["template"]["spec"], group["template"]["spec"]
        assert mine["nodeSelector"] == theirs["nodeSelector"]
        assert mine.get("tolerations", []) == theirs.get("tolerations", [])
        limits = theirs["containers"][0]["resources"]["limits"]
        assert compiler_container(mine)["resources"]["limits"] == limits


def test_every_build_is_a_job_that_kubernetes_takes(template: JobTemplate) -> None:
    objects = render(PRODUCTION)
    for generation in generations():
        for is_anywhere in (False, True):
            job = filled(template, generation, is_anywhere=is_anywhere)
            assert check_kubernetes_kinds([*objects, job]) == []
            refuse_unknown_fields(Job, job, "")
            container = compiler_container(job["spec"]["template"]["spec"])
            assert container["image"] == IMAGE
            assert container["args"][:2] == ["build", "minilm"]


def test_the_controller_reads_the_groups_as_pools_at_zero() -> None:
    classes = worker_group_classes(ray_service(render(PRODUCTION))).values()
    assert [found.generation for found in classes] == generations()


def test_a_build_for_any_node_takes_no_gpu(template: JobTemplate) -> None:
    job = filled(template, "cuda-sm90", is_anywhere=True)
    pod = job["spec"]["template"]["spec"]
    assert "nvidia.com/gpu" not in compiler_container(pod)["resources"]["limits"]
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "amd64"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_local_template_differs_in_store_and_size_alone(overlay: str) -> None:
    """A patch cannot reach into a ConfigMap's text, so the local overlay has a copy."""
    base = builder_job(render(PRODUCTION))
    job = builder_job(render(K8S / "overlays" / overlay))
    pod = job["spec"]["template"]["spec"]
    if overlay == "local":
        assert pod["volumes"].pop() == {
            "name": "store",
            "persistentVolumeClaim": {"claimName": "smelt-store"},
        }
        assert pod["containers"][0]["volumeMounts"].pop()["name"] == "store"
        original = base["spec"]["template"]["spec"]["containers"][0]["resources"]
        pod["containers"][0]["resources"]["requests"] = original["requests"]
    assert job == base
