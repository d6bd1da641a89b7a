"""What a Job object, and the Pod it made, say about a build task."""

from collections.abc import Mapping
from typing import Any

from services.controller.seams import TaskState, TaskStatus

_Object = Mapping[str, Any]

# Its Pod failed; the other reasons (a deadline, for one) are about the Job itself.
_BY_POD = "BackoffLimitExceeded"
# Evicted, preempted, or gone with its node.
_DISRUPTED = "DisruptionTarget"


def task_status(job: _Object, pod: _Object | None) -> TaskStatus:
    """Where a task is; `pod` is the Job's newest one, None while it has none."""
    status = job.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or [] if c["status"] == "True"}
    if failed := conditions.get("Failed"):
        return TaskStatus(
            state=TaskState.ENDED,
            is_failed=True,
            is_lost=failed.get("reason") == _BY_POD and _is_disrupted(pod),
            run=(job.get("metadata") or {}).get("uid", ""),
            detail=_last_words(failed, pod),
        )
    if "Complete" in conditions:
        return TaskStatus(state=TaskState.ENDED)
    if (job.get("spec") or {}).get("suspend"):
        return TaskStatus(state=TaskState.WAITING, detail="suspended: its queue has no room yet")
    # `ready` alone: a Pod counts as active from the moment that it is asked for.
    if status.get("ready") or _phase(pod) == "Running":
        return TaskStatus(state=TaskState.RUNNING)
    return TaskStatus(state=TaskState.WAITING, detail=_hindrance(pod))


def _phase(pod: _Object | None) -> str:
    return str(((pod or {}).get("status") or {}).get("phase", ""))


def _is_disrupted(pod: _Object | None) -> bool:
    """Whether somebody else ended the Pod; one that ended by itself stays with its Job."""
    conditions = ((pod or {}).get("status") or {}).get("conditions") or []
    return pod is None or any(c["type"] == _DISRUPTED and c["status"] == "True" for c in conditions)


def _last_words(condition: _Object, pod: _Object | None) -> str:
    """Why the Job failed, then what the compiler said last."""
    why = ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
    said = [
        f"{c['name']} exited with {ended.get('exitCode')} ({ended.get('reason', 'no reason')}): "
        f"{(ended.get('message') or 'no output').strip()}"
        for c in _container_statuses(pod)
        if (ended := (c.get("state") or {}).get("terminated")) and ended.get("exitCode")
    ]
    return "; ".join([why or "the Job failed", *said])


def _hindrance(pod: _Object | None) -> str:
    """Why a Pod does not run yet, in the scheduler's or the kubelet's words."""
    if pod is None:
        return "no Pod yet"
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}".strip(": ")
    for container in _container_statuses(pod):
        if waiting := (container.get("state") or {}).get("waiting"):
            return f"{waiting.get('reason', '')}: {waiting.get('message', '')}".strip(": ")
    return "its Pod is starting"


def _container_statuses(pod: _Object | None) -> list[_Object]:
    status = (pod or {}).get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
