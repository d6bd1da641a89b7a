"""Where a task is, from its Job and Pod."""

from typing import Any

import pytest

from services.controller.interfaces import TaskState, TaskStatus
from services.controller.platform.kubernetes.job_status import task_status


def _job(*conditions: dict[str, str], **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "j"}, "status": {"conditions": list(conditions)} | status}


def _pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": status}


def _container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "builder", "state": state}]}


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available",
}
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
PULLING = {"reason": "ImagePullBackOff", "message": "no such image"}
FAILED = {
    "type": "Failed",
    "status": "True",
    "reason": "BackoffLimitExceeded",
    "message": "Job has reached the specified backoff limit",
}


@pytest.mark.parametrize(
    ("job", "pod", "state", "detail"),
    [
        (_job(), None, TaskState.WAITING, "no Pod yet"),
        ({"metadata": {"name": "j"}}, None, TaskState.WAITING, "no Pod yet"),
        (
            _job(active=1),
            _pod(conditions=[UNSCHEDULABLE]),
            TaskState.WAITING,
            "Unschedulable: 0/3 nodes are available",
        ),
        (
            _job(active=1, ready=0),
            _pod(phase="Pending", **_container(waiting=PULLING)),
            TaskState.WAITING,
            "ImagePullBackOff: no such image",
        ),
        (_job(active=1), _pod(phase="Pending"), TaskState.WAITING, "its Pod is starting"),
        (_job(active=1, ready=1), None, TaskState.RUNNING, ""),
        (_job(active=1), _pod(phase="Running"), TaskState.RUNNING, ""),
        (_job({"type": "Complete", "status": "True"}), None, TaskState.ENDED, ""),
        (_job({"type": "Failed", "status": "False"}), None, TaskState.WAITING, "no Pod yet"),
        (
            {"metadata": {}, "spec": {"suspend": True}},
            None,
            TaskState.WAITING,
            "suspended: its queue has no quota yet",
        ),
    ],
)
def test_where_a_task_is(
    job: dict[str, Any], pod: dict[str, Any] | None, state: TaskState, detail: str
) -> None:
    assert task_status(job, pod) == TaskStatus(state=state, detail=detail)


def test_a_failed_task_has_the_compilers_last_words() -> None:
    ended = {"exitCode": 1, "reason": "Error", "message": "BuildError: no kernel image\n"}
    status = task_status(_job(FAILED), _pod(phase="Failed", **_container(terminated=ended)))
    assert (status.state, status.is_failed) == (TaskState.ENDED, True)
    assert status.detail == (
        "BackoffLimitExceeded: Job has reached the specified backoff limit; "
        "builder exited with 1 (Error): BuildError: no kernel image"
    )


def test_a_task_killed_for_its_memory_says_so_without_output() -> None:
    killed = {"exitCode": 137, "reason": "OOMKilled"}
    status = task_status(_job(FAILED), _pod(**_container(terminated=killed)))
    assert status.detail.endswith("builder exited with 137 (OOMKilled): no output")


def test_a_failed_task_whose_pod_is_gone_has_the_jobs_reason() -> None:
    deadline = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}
    status = task_status(_job(deadline), None)
    assert (status.is_failed, status.detail) == (True, "DeadlineExceeded")
    assert task_status(_job({"type": "Failed", "status": "True"}), None).detail == "the Job failed"


@pytest.mark.parametrize(
    ("reason", "pod", "is_lost"),
    [
        ("BackoffLimitExceeded", _pod(phase="Failed"), False),
        ("BackoffLimitExceeded", _pod(conditions=[{"type": "Ready", "status": "False"}]), False),
        ("BackoffLimitExceeded", _pod(conditions=[DISRUPTED]), True),
        ("BackoffLimitExceeded", _pod(conditions=[DISRUPTED | {"status": "False"}]), False),
        # The control plane removed it after its node.
        ("BackoffLimitExceeded", None, True),
        # The Job's own deadline removes its Pod too.
        ("DeadlineExceeded", None, False),
        ("DeadlineExceeded", _pod(conditions=[DISRUPTED]), False),
    ],
)
def test_a_pod_that_was_taken_away_is_lost(
    reason: str, pod: dict[str, Any] | None, is_lost: bool
) -> None:
    job = _job(FAILED | {"reason": reason})
    job["metadata"]["uid"] = "u-1"
    status = task_status(job, pod)
    assert (status.is_failed, status.is_lost, status.run) == (True, is_lost, "u-1")


@pytest.mark.parametrize(
    ("pod", "has_waited", "is_unstarted"),
    [
        (None, True, True),
        (None, False, False),
        (_pod(phase="Pending", conditions=[UNSCHEDULABLE]), False, True),
        (_pod(phase="Pending", **_container(waiting=PULLING)), False, True),
        (_pod(phase="Running", **_container(running={})), True, False),
        (_pod(phase="Failed", **_container(terminated={"exitCode": 137})), True, False),
    ],
)
def test_a_job_that_never_ran_says_nothing_of_its_keys(
    pod: dict[str, Any] | None, has_waited: bool, is_unstarted: bool
) -> None:
    job = _job(FAILED | {"reason": "DeadlineExceeded"})
    status = task_status(job, pod, has_waited=has_waited)
    assert (status.is_failed, status.is_unstarted) == (True, is_unstarted)
    assert not task_status(_job(FAILED), pod, has_waited=has_waited).is_unstarted
