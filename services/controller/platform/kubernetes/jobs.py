"""Build tasks as Kubernetes Jobs: one Job for a task, by the task's own name.

The name makes launching twice harmless, and the label makes the Jobs of an earlier controller
this one's too. A Job that failed stays after it was accounted for, with an annotation for
that: its log is read until the cluster removes it, or a task of that name is launched anew.
"""

import logging
from collections.abc import Mapping
from typing import Any

from lightkube.config.kubeconfig import SingleConfig
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Event, Pod
from lightkube.types import PatchType

from services.contracts.errors import InvalidRequestError, NotReadyError
from services.controller.interfaces import BuildTask, TaskState, TaskStatus
from services.controller.platform.kubernetes.client import (
    NOT_FOUND,
    REQUEST_ERRORS,
    blocking_client,
    status_code,
)
from services.controller.platform.kubernetes.job_object import ACCOUNTED, TASK_LABEL, job_for
from services.controller.platform.kubernetes.job_status import (
    CREATE_FAILED,
    creation_refusals,
    run_of,
    task_status,
)
from services.controller.platform.kubernetes.job_template import (
    JobTemplate,
    compiler_container,
    refuse_unknown_fields,
)
from services.controller.platform.kubernetes.labelled_objects import LabelledObjects

logger = logging.getLogger(__name__)


class KubernetesJobs:
    """A BuildLauncher; safe to call from several threads.

    Attributes:
        compiler: the image that its Jobs run.
    """

    has_deadlines = True

    def __init__(
        self, cluster: SingleConfig, namespace: str, template: JobTemplate, image: str = ""
    ) -> None:
        """Nothing is asked of the cluster yet.

        Args:
            cluster: see `client.find_cluster`.
            namespace: where the Jobs run; one fleet to a namespace.
            template: see `job_template.read_template`.
            image: the compiler's; "" takes the template's.

        Raises:
            InvalidRequestError: the template has a field that no Job has, or the
                cluster's credentials cannot be read.
        """
        self._namespace = namespace
        self._template = template
        self._image = image
        # A Node object has no library versions: the image is what they come from.
        self.compiler = image or str(_template_image(template))
        # Runs that were seen to wait, and never to run.
        self._waited: set[str] = set()
        self._events_fault = ""
        refuse_unknown_fields(Job, template.job, "build job template")
        self._client = blocking_client(cluster, namespace)
        self._ours = LabelledObjects(self._client, namespace, TASK_LABEL)

    def launch(self, task: BuildTask) -> None:
        """Create the task's Job; one that this fleet made before is left as it is.

        Raises:
            NotReadyError: the cluster is out of reach, or forbids it.
            InvalidRequestError: the cluster finds the Job invalid, or a Job that is not
                Smelt's has the name.
        """
        job: Any = Job.from_dict(job_for(task, self._template, self._image))
        if self._ours.create(job):
            logger.info("created Job %s: %s", task.name, task.reason)
        else:
            # Most often that of the same task, launched before.
            self._take_over(task, job)

    def _take_over(self, task: BuildTask, job: Any) -> None:
        """Leave the Job that has a task's name as it is; one that is over is deleted."""
        known = self._find(task.name)
        if known is None:
            raise InvalidRequestError(
                f"a Job '{task.name}' exists in namespace '{self._namespace}' which is not "
                f"Smelt's: it has no label {TASK_LABEL}; delete or rename it"
            )
        if not _is_accounted(known):
            return
        self._ours.delete(Job, task.name)
        if not self._ours.create(job):
            raise NotReadyError(
                f"the last Job '{task.name}' is not gone yet; the next sync tries again"
            )
        logger.info("created Job %s anew: %s", task.name, task.reason)

    def statuses(self) -> dict[str, TaskStatus]:
        """All tasks that have a Job, by name, less those that are over for us.

        Those are being deleted, or failed and were accounted for.

        Raises:
            NotReadyError: the cluster is out of reach, or forbids it.
        """
        # Before the Pods: of a Job that is seen to have failed, a Pod that is not there is gone.
        jobs = [job for job in self._ours.list(Job) if not _is_over(job)]
        # Of several Pods of one Job the newest counts: it is the last one to be put in.
        pods = self._ours.newest(Pod)
        names = {
            self._ours.label_of(job)
            for job in jobs
            if not (job.get("status") or {}).get("conditions")
        }
        # Events of a namespace are many, and syncs frequent: asked for only while a Job has no Pod.
        refusals = self._creation_refusals() if names - pods.keys() else {}
        found: dict[str, TaskStatus] = {}
        waited: set[str] = set()
        for job in jobs:
            name = self._ours.label_of(job)
            run = run_of(job)
            status = task_status(
                job,
                pods.get(name),
                has_waited=run in self._waited,
                refusal=refusals.get(name, ""),
            )
            if status.state is TaskState.WAITING or status.is_unstarted:
                waited.add(run)
            found[name] = status
        self._waited = waited
        return found

    def forget(self, name: str) -> None:
        """Delete the task's Job and, in the background, its Pod; one that failed stays, marked.

        Raises:
            NotReadyError: the cluster is out of reach, or forbids it.
        """
        job = self._find(name)
        if job is None or _is_accounted(job):
            return
        if task_status(job, None).is_failed:
            self._mark_accounted(name)
        else:
            self._ours.delete(Job, name)

    def _mark_accounted(self, name: str) -> None:
        # A merge patch of this one field: an update of the whole object needs its newest
        # resourceVersion, which changes with each status that the Job controller writes.
        mark = {"metadata": {"annotations": {ACCOUNTED: "true"}}}
        try:
            self._client.patch(
                Job, name, mark, namespace=self._namespace, patch_type=PatchType.MERGE
            )
        except REQUEST_ERRORS as error:
            if status_code(error) != NOT_FOUND:
                raise self._ours.explained(error, "patch", Job) from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _find(self, name: str) -> dict[str, Any] | None:
        """This fleet's Job of that name; None when there is none, or it is not ours."""
        try:
            job: dict[str, Any] = self._client.get(Job, name, namespace=self._namespace).to_dict()
        except REQUEST_ERRORS as error:
            if status_code(error) == NOT_FOUND:
                return None
            raise self._ours.explained(error, "get", Job) from error
        return job if self._ours.label_of(job) == name else None

    def _creation_refusals(self) -> dict[str, str]:
        """Why Jobs have no Pod, by name; nothing where events may not be listed."""
        fields: dict[str, Any] = {"involvedObject.kind": "Job", "reason": CREATE_FAILED}
        try:
            found = self._client.list(Event, namespace=self._namespace, fields=fields)
            refusals = creation_refusals(event.to_dict() for event in found)
        except REQUEST_ERRORS as error:
            # Builds go on without the reason; it costs a right that older Roles do not grant.
            fault = str(self._ours.explained(error, "list", Event))
            if fault != self._events_fault:
                logger.warning("why a build Job has no Pod is not known: %s", fault)
            self._events_fault = fault
            return {}
        self._events_fault = ""
        return refusals


def _template_image(template: JobTemplate) -> Any:
    return compiler_container(template.job["spec"]["template"]["spec"]).get("image", "")


def _is_over(job: Mapping[str, Any]) -> bool:
    return bool(job["metadata"].get("deletionTimestamp")) or _is_accounted(job)


def _is_accounted(job: Mapping[str, Any]) -> bool:
    return ACCOUNTED in (job["metadata"].get("annotations") or {})
