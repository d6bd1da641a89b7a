"""Build tasks as Jobs of an emulated cluster."""

import asyncio
from collections.abc import Callable
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from services.contracts.errors import InvalidRequestError, NotReadyError
from services.contracts.hardware.node_class import NodeClass
from services.controller.interfaces import BuildTask, TaskState, TaskStatus
from services.controller.platform.kubernetes.job_object import TASK_LABEL
from services.controller.platform.kubernetes.job_template import JobTemplate
from services.controller.platform.kubernetes.jobs import KubernetesJobs
from tests.integration.kubernetes.emulated_cluster import (
    JOBS,
    NAMESPACE,
    Asked,
    EmulatedCluster,
)

MakeJobs = Callable[[EmulatedCluster], KubernetesJobs]
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
TASK = BuildTask(
    name="build-minilm-1-sm90-a1",
    model="minilm",
    version=1,
    node_class=NodeClass(generation="cuda-sm90"),
    is_anywhere=False,
    reason="a node of cuda-sm90 appeared",
)


def _condition(**fields: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"status": "True"} | fields]}}


async def test_a_task_becomes_a_valid_job(cluster: EmulatedCluster, make_jobs: MakeJobs) -> None:
    await asyncio.to_thread(make_jobs(cluster).launch, TASK)
    (job,) = cluster.objects("jobs").values()
    kubernetes_validate.validate(job, "1.34", strict=True)
    assert job["metadata"]["name"] == TASK.name
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["nvidia.com/gpu.compute.major"] == "9"
    assert pod["containers"][0]["args"][:4] == ["build", "minilm", "--version", "1"]


async def test_launching_twice_is_launching_once(
    cluster: EmulatedCluster, make_jobs: MakeJobs
) -> None:
    await asyncio.to_thread(make_jobs(cluster).launch, TASK)
    first = cluster.objects("jobs")
    again = TASK.model_copy(update={"reason": "said again by a controller that was started again"})
    await asyncio.to_thread(make_jobs(cluster).launch, again)
    assert cluster.objects("jobs") == first


async def test_somebody_elses_job_of_that_name_is_not_taken_for_ours(
    cluster: EmulatedCluster, make_jobs: MakeJobs
) -> None:
    await cluster.create(JOBS, {"metadata": {"name": TASK.name, "namespace": NAMESPACE}})
    jobs = make_jobs(cluster)
    with pytest.raises(InvalidRequestError, match="which is not Smelt's"):
        await asyncio.to_thread(jobs.launch, TASK)
    assert await asyncio.to_thread(jobs.statuses) == {}
    await asyncio.to_thread(jobs.forget, TASK.name)
    assert list(cluster.objects("jobs")) == [TASK.name]


async def test_a_task_is_followed_to_its_end_by_any_controller(
    cluster: EmulatedCluster, make_jobs: MakeJobs
) -> None:
    await asyncio.to_thread(make_jobs(cluster).launch, TASK)
    jobs = make_jobs(cluster)

    async def status() -> TaskStatus:
        return (await asyncio.to_thread(jobs.statuses))[TASK.name]

    assert await status() == TaskStatus(state=TaskState.WAITING, detail="no Pod yet")
    await cluster.patch(f"{JOBS}/{TASK.name}", {"status": {"active": 1, "ready": 1}})
    assert await status() == TaskStatus(state=TaskState.RUNNING)
    failed = _condition(type="Failed", reason="BackoffLimitExceeded")
    await cluster.patch(f"{JOBS}/{TASK.name}", failed)
    ended = {"exitCode": 1, "reason": "Error", "message": "BuildError: out of memory"}
    pod = {
        "metadata": {"name": "p", "namespace": NAMESPACE, "labels": {TASK_LABEL: TASK.name}},
        "status": {"containerStatuses": [_container(ended)]},
    }
    await cluster.create(PODS, pod)
    found = await status()
    assert (found.state, found.is_failed) == (TaskState.ENDED, True)
    assert found.detail.endswith("BuildError: out of memory")


def _container(ended: dict[str, Any]) -> dict[str, Any]:
    named = {"name": "builder", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    return named | {"state": {"terminated": ended}}


async def test_jobs_and_pods_of_others_are_not_seen(
    cluster: EmulatedCluster, make_jobs: MakeJobs
) -> None:
    await cluster.create(JOBS, {"metadata": {"name": "other", "namespace": NAMESPACE}})
    await cluster.create(PODS, {"metadata": {"name": "other", "namespace": NAMESPACE}})
    assert await asyncio.to_thread(make_jobs(cluster).statuses) == {}
    selected = [query for asked, query in cluster.emulator.queries if asked.verb == "list"]
    assert selected == [{"labelSelector": TASK_LABEL}] * 2


async def test_a_quota_that_refuses_the_pod_is_named(
    cluster: EmulatedCluster, make_jobs: MakeJobs
) -> None:
    jobs = make_jobs(cluster)
    await asyncio.to_thread(jobs.launch, TASK)
    for number, message in enumerate(("exceeded quota: old", "exceeded quota: builds")):
        await cluster.create(EVENTS, _event(number, message))
    await cluster.create(EVENTS, _event(8, "of a Pod", kind="Pod"))
    await cluster.create(EVENTS, _event(9, "created pod", reason="SuccessfulCreate"))
    status = (await asyncio.to_thread(jobs.statuses))[TASK.name]
    assert status.detail == "no Pod yet: exceeded quota: builds"
    pod = {"metadata": {"name": "p", "labels": {TASK_LABEL: TASK.name}}}
    await cluster.create(PODS, pod)
    status = (await asyncio.to_thread(jobs.statuses))[TASK.name]
    assert status.detail == "its Pod is starting"


async def test_without_the_right_to_list_events_builds_go_on(
    cluster: EmulatedCluster, make_jobs: MakeJobs, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = make_jobs(cluster)
    await asyncio.to_thread(jobs.launch, TASK)
    cluster.emulator.granted = frozenset(
        {Asked("list", "batch", "jobs"), Asked("list", "", "pods")}
    )
    for _ in range(2):
        status = (await asyncio.to_thread(jobs.statuses))[TASK.name]
        assert status == TaskStatus(state=TaskState.WAITING, detail="no Pod yet")
    assert caplog.text.count("the verb 'list' on events by a Role") == 1


def _event(
    number: int, message: str, *, kind: str = "Job", reason: str = "FailedCreate"
) -> dict[str, Any]:
    return {
        "metadata": {"name": f"e{number}", "namespace": NAMESPACE},
        "involvedObject": {"kind": kind, "name": TASK.name},
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2026-01-01T00:00:0{number}Z",
    }


async def test_a_job_that_is_being_deleted_is_gone_already(
    cluster: EmulatedCluster, make_jobs: MakeJobs
) -> None:
    jobs = make_jobs(cluster)
    await asyncio.to_thread(jobs.launch, TASK)
    stopping = {"metadata": {"finalizers": ["foregroundDeletion"]}}
    await cluster.patch(f"{JOBS}/{TASK.name}", stopping)
    await asyncio.to_thread(jobs.forget, TASK.name)
    assert await asyncio.to_thread(jobs.statuses) == {}
    # Its name is not free yet; that is no error, and the next pass tries again.
    await asyncio.to_thread(jobs.launch, TASK)


async def test_a_forgotten_task_takes_its_pod_with_it(
    cluster: EmulatedCluster, make_jobs: MakeJobs
) -> None:
    jobs = make_jobs(cluster)
    await asyncio.to_thread(jobs.launch, TASK)
    await asyncio.to_thread(jobs.forget, TASK.name)
    assert cluster.objects("jobs") == {}
    assert await asyncio.to_thread(jobs.statuses) == {}
    (how,) = [query for asked, query in cluster.emulator.queries if asked.verb == "delete"]
    assert how == {"propagationPolicy": "Background"}
    await asyncio.to_thread(jobs.forget, TASK.name)
    await asyncio.to_thread(jobs.forget, "never-heard-of")


async def test_a_job_that_failed_stays_for_its_log_until_its_name_is_needed(
    cluster: EmulatedCluster, make_jobs: MakeJobs
) -> None:
    jobs = make_jobs(cluster)
    await asyncio.to_thread(jobs.launch, TASK)
    await cluster.patch(f"{JOBS}/{TASK.name}", _condition(type="Failed", reason="DeadlineExceeded"))
    assert (await asyncio.to_thread(jobs.statuses))[TASK.name].is_failed
    for _ in range(2):
        await asyncio.to_thread(jobs.forget, TASK.name)
        (job,) = cluster.objects("jobs").values()
        assert job["metadata"]["annotations"]["smelt.dev/accounted"] == "true"
        assert await asyncio.to_thread(make_jobs(cluster).statuses) == {}
    await asyncio.to_thread(jobs.launch, TASK.model_copy(update={"name": "the-next-attempt"}))
    assert set(cluster.objects("jobs")) == {TASK.name, "the-next-attempt"}
    await asyncio.to_thread(jobs.launch, TASK)
    status = (await asyncio.to_thread(jobs.statuses))[TASK.name]
    assert status.state is TaskState.WAITING, "a Job of its own, not the one that failed"


@pytest.mark.parametrize("has_run", [False, True])
async def test_a_deadline_that_ends_a_wait_is_told_from_one_that_ends_a_build(
    cluster: EmulatedCluster, make_jobs: MakeJobs, has_run: bool
) -> None:
    """It takes the Pod away, so what was seen before decides."""
    jobs = make_jobs(cluster)
    await asyncio.to_thread(jobs.launch, TASK)
    await asyncio.to_thread(jobs.statuses)
    if has_run:
        await cluster.patch(f"{JOBS}/{TASK.name}", {"status": {"active": 1, "ready": 1}})
        await asyncio.to_thread(jobs.statuses)
    await cluster.patch(f"{JOBS}/{TASK.name}", _condition(type="Failed", reason="DeadlineExceeded"))
    for _ in range(2):
        status = (await asyncio.to_thread(jobs.statuses))[TASK.name]
        assert (status.is_failed, status.is_unstarted) == (True, not has_run)


@pytest.mark.parametrize(
    ("verb", "group", "plural", "act"),
    [
        ("create", "batch", "jobs", lambda jobs: jobs.launch(TASK)),
        ("get", "batch", "jobs", lambda jobs: jobs.forget(TASK.name)),
        ("delete", "batch", "jobs", lambda jobs: jobs.forget(TASK.name)),
        ("list", "batch", "jobs", lambda jobs: jobs.statuses()),
        ("list", "", "pods", lambda jobs: jobs.statuses()),
    ],
)
async def test_a_missing_permission_is_named(
    cluster: EmulatedCluster,
    make_jobs: MakeJobs,
    verb: str,
    group: str,
    plural: str,
    act: Callable[[KubernetesJobs], object],
) -> None:
    jobs = make_jobs(cluster)
    everything = {
        Asked(verb, group, plural)
        for verb in ("create", "get", "list", "delete")
        for group, plural in (("batch", "jobs"), ("", "pods"))
    }
    await asyncio.to_thread(jobs.launch, TASK.model_copy(update={"name": "other"}))
    await cluster.create(JOBS, {"metadata": {"name": TASK.name, "labels": {TASK_LABEL: TASK.name}}})
    cluster.emulator.granted = frozenset(everything - {Asked(verb, group, plural)})
    resource = f"{plural}.{group}".rstrip(".")
    with pytest.raises(NotReadyError, match=f"the verb '{verb}' on {resource} by a Role"):
        await asyncio.to_thread(act, jobs)


async def test_a_cluster_out_of_reach_is_named(
    cluster: EmulatedCluster, make_jobs: MakeJobs
) -> None:
    jobs = make_jobs(cluster)
    await cluster.stop()
    with pytest.raises(NotReadyError, match=r"cannot create jobs\.batch in namespace 'smelt'"):
        await asyncio.to_thread(jobs.launch, TASK)
    with pytest.raises(NotReadyError, match=r"cannot list jobs\.batch in namespace 'smelt'"):
        await asyncio.to_thread(jobs.statuses)


async def test_a_template_with_a_misspelt_field_is_refused_at_the_start(
    cluster: EmulatedCluster, template: JobTemplate
) -> None:
    template.job["spec"]["template"]["spec"]["tolerration"] = [{"operator": "Exists"}]
    with pytest.raises(InvalidRequestError, match=r"no field \.spec\.template\.spec\.tolerration"):
        KubernetesJobs(cluster.config, NAMESPACE, template)
