"""The status of a build task by its Job object and the Job's Pod."""

from collections.abc import Iterable, Mapping
from typing import Any

from services.controller.interfaces import TaskState, TaskStatus

_Object = Mapping[str, Any]

# Its Pod failed; the other reasons (a deadline, for one) are about the Job itself.
_BY_POD = "BackoffLimitExceeded"
_BY_TIME = "DeadlineExceeded"
# The Job controller's events about Pods that the API server did not let it create.
CREATE_FAILED = "FailedCreate"
# Evicted, preempted, or gone with its node.
_DISRUPTED = "DisruptionTarget"


def task_status(
    job: _Object, pod: _Object | None, *, has_waited: bool = False, refusal: str = ""
) -> TaskStatus:
    """Where a task is.

    Args:
        job: its Job.
        pod: the Job's newest one; None while it has none, and when it was removed.
        has_waited: it was seen to wait, and never to run.
        refusal: the Job controller's message when no Pod could be created; "" for none.
    """
    status = job.get("status") or {}
    # Failed and Complete alone are final: FailureTarget and SuccessCriteriaMet precede them
    # while Pods still end.
    conditions = {c["type"]: c for c in status.get("conditions") or [] if c["status"] == "True"}
    if failed := conditions.get("Failed"):
        by_pod, by_time = (failed.get("reason") == why for why in (_BY_POD, _BY_TIME))
        return TaskStatus(
            state=TaskState.ENDED,
            is_failed=True,
            is_lost=by_pod and _is_disrupted(pod),
            # Its deadline takes the Pod of a Job away, and with it its status.
            is_unstarted=by_time and (has_waited if pod is None else not _has_started(pod)),
            run=run_of(job),
            detail=_failure(failed, pod),
        )
    if "Complete" in conditions:
        return TaskStatus(state=TaskState.ENDED)
    if (job.get("spec") or {}).get("suspend"):
        return TaskStatus(state=TaskState.WAITING, detail="suspended: its queue has no quota yet")
    # `ready` alone: a Pod counts as active from the moment that it is asked for.
    if status.get("ready") or _phase(pod) == "Running":
        return TaskStatus(state=TaskState.RUNNING)
    return TaskStatus(state=TaskState.WAITING, detail=wait_reason(pod, refusal))


def run_of(job: _Object) -> str:
    """What distinguishes this Job from a later one of the same name."""
    return str((job.get("metadata") or {}).get("uid") or "")


def creation_refusals(events: Iterable[_Object]) -> dict[str, str]:
    """The newest message about a Pod that could not be created, by the name of its Job.

    A quota or an admission webhook refuses the Pod and not the Job, whose status stays empty:
    only the Job controller's events name the reason.
    """
    failed = [
        event
        for event in events
        if event.get("reason") == CREATE_FAILED and event["involvedObject"].get("kind") == "Job"
    ]
    return {
        str(event["involvedObject"].get("name")): str(event.get("message") or "")
        for event in sorted(failed, key=_event_time)
    }


def _event_time(event: _Object) -> str:
    # All are in UTC, so that their text sorts as they do.
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _has_started(pod: _Object) -> bool:
    """Whether a container of the Pod has run."""
    states = [
        c.get(name) or {} for c in _container_statuses(pod) for name in ("state", "lastState")
    ]
    return _phase(pod) not in ("", "Pending") or any(
        "running" in state or "terminated" in state for state in states
    )


def _phase(pod: _Object | None) -> str:
    return str(((pod or {}).get("status") or {}).get("phase", ""))


def _is_disrupted(pod: _Object | None) -> bool:
    """Whether the Pod was evicted or deleted; one that ended stays with its Job."""
    conditions = ((pod or {}).get("status") or {}).get("conditions") or []
    return pod is None or any(c["type"] == _DISRUPTED and c["status"] == "True" for c in conditions)


def _failure(condition: _Object, pod: _Object | None) -> str:
    """Why the Job failed, then the last output of the compiler."""
    why = ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
    outputs = [
        f"{c['name']} exited with {ended.get('exitCode')} ({ended.get('reason', 'no reason')}): "
        f"{(ended.get('message') or 'no output').strip()}"
        for c in _container_statuses(pod)
        if (ended := (c.get("state") or {}).get("terminated")) and ended.get("exitCode")
    ]
    return "; ".join([why or "the Job failed", *outputs])


def wait_reason(pod: _Object | None, refusal: str) -> str:
    """Why a Pod does not run yet: the Job controller's, scheduler's or kubelet's message."""
    if pod is None:
        return f"no Pod yet: {refusal}" if refusal else "no Pod yet"
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
