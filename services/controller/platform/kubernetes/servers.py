"""External models that Kubernetes runs: a Deployment and a Service for each version.

A version never changes, so its objects are created, and left as they are from then on: an
operator may scale a Deployment. What has one of their names and is not theirs is an error.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from lightkube.config.kubeconfig import SingleConfig
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Pod, Service

from services.contracts.errors import (
    ExternalServerError,
    InvalidRequestError,
    NotReadyError,
    SmeltError,
)
from services.contracts.external.external_model import ExternalModel, Starter
from services.contracts.external.server_manifest import MODEL, SERVER_LABEL, VERSION, Object
from services.controller.platform.kubernetes.client import (
    blocking_client,
)
from services.controller.platform.kubernetes.job_status import wait_reason
from services.controller.platform.kubernetes.job_template import refuse_unknown_fields
from services.controller.platform.kubernetes.labelled_objects import LabelledObjects

logger = logging.getLogger(__name__)

# In the order of their creation: a Service whose name is taken must not leave pods that hold GPUs.
_KINDS: Final[dict[str, Any]] = {"Service": Service, "Deployment": Deployment}
# Model and version, as annotations have them.
_Owner = tuple[str, str]


class KubernetesServers:
    """A ServeApplications; safe to call from several threads."""

    starter = Starter.KUBERNETES

    def __init__(self, cluster: SingleConfig, namespace: str) -> None:
        """Nothing is asked of the cluster yet.

        Args:
            cluster: see `client.find_cluster`.
            namespace: where the objects are; one fleet to a namespace.

        Raises:
            InvalidRequestError: the cluster's credentials cannot be read.
        """
        self._namespace = namespace
        self._client = blocking_client(cluster, namespace)
        self._ours = LabelledObjects(self._client, namespace, SERVER_LABEL)
        self._faults: dict[_Owner, SmeltError] = {}
        self._not_deleted: SmeltError | None = None

    def apply(self, models: Sequence[ExternalModel], kept: Collection[str] = ()) -> bool:
        """Have these run, and no other but those of kept names; whether one runs, or still ends.

        Raises:
            NotReadyError: the cluster is out of reach, or forbids it; an object that cannot be
                deleted keeps no other from being deleted or created.
        """
        found = {kind: self._ours.list(resource) for kind, resource in _KINDS.items()}
        wanted = {(model.name, str(model.version)) for model in models}
        self._not_deleted = self._delete_others(found, wanted, kept)
        # After those of others are deleted: one of these may have the same names.
        self._faults = {
            (model.name, str(model.version)): fault
            for model in models
            if (fault := self._create_missing(model, found))
        }
        if self._not_deleted:
            raise self._not_deleted
        return bool(models) or any(_owner(one) for objects in found.values() for one in objects)

    def find(self, model: ExternalModel) -> ExternalModel:
        """A model as its available pods are asked, by the name of the Service.

        Raises:
            NotReadyError: no pod is available yet, or the cluster is out of reach.
            ExternalServerError: its objects could not be created, or made no progress.
        """
        owner = (model.name, str(model.version))
        if fault := self._faults.get(owner) or self._why_unavailable(owner):
            # What is not deleted may hold the GPU or the name that this one waits for.
            also = f"; {not_deleted}" if (not_deleted := self._not_deleted) else ""
            raise type(fault)(f"{fault}{also}")
        service = model.objects()["Service"]["metadata"]["name"]
        return model.behind(f"{service}.{self._namespace}.svc:{model.place[1]}")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _why_unavailable(self, owner: _Owner) -> SmeltError | None:
        found = [one for one in self._ours.list(Deployment) if _owner(one) == owner]
        if not found:
            return NotReadyError("it has no Deployment yet")
        if (found[0].get("status") or {}).get("availableReplicas"):
            return None
        name = found[0]["metadata"]["name"]
        return _wait(found[0], self._ours.newest(Pod).get(name))

    def _delete_others(
        self,
        found: Mapping[str, Sequence[Object]],
        wanted: Collection[_Owner],
        kept: Collection[str],
    ) -> SmeltError | None:
        """Delete what is of other versions; why the first that is not deleted was not."""
        first = None
        for kind, objects in found.items():
            for one in objects:
                owner = _owner(one)
                if not owner or owner in wanted or owner[0] in kept:
                    continue
                name = one["metadata"]["name"]
                try:
                    self._ours.delete(_KINDS[kind], name)
                    logger.info("deleted %s %s", kind, name)
                except SmeltError as error:
                    logger.warning("%s %s is not deleted: %s", kind, name, error)
                    first = first or NotReadyError(f"{kind} {name} is not deleted: {error}")
        return first

    def _create_missing(
        self, model: ExternalModel, found: Mapping[str, Sequence[Object]]
    ) -> SmeltError | None:
        """Create what is not found; why that could not be done."""
        try:
            objects = model.objects()
            for kind in _KINDS:
                known = [one for one in found[kind] if _owner(one) == _owner(objects[kind])]
                if any(one["metadata"].get("deletionTimestamp") for one in known):
                    raise NotReadyError(f"its last {kind} is not gone yet")
                if not known:
                    self._create(objects[kind])
        except (InvalidRequestError, ValueError) as error:
            return ExternalServerError(str(error))
        except SmeltError as error:
            return error
        return None

    def _create(self, document: Object) -> None:
        kind = document["kind"]
        name = document["metadata"]["name"]
        resource = _KINDS[kind]
        if document["metadata"].get("namespace", self._namespace) != self._namespace:
            raise ExternalServerError(
                f"manifest: {kind} of namespace '{document['metadata']['namespace']}'; expected "
                f"'{self._namespace}', the fleet's own: leave the namespace out"
            )
        refuse_unknown_fields(resource, document, "manifest")
        if not self._ours.create(resource.from_dict(document)):
            raise ExternalServerError(
                f"a {kind} '{name}' exists in namespace '{self._namespace}' which is not of this "
                f"version, and is left as it is; delete it, or rename the {kind} in the manifest"
            )
        logger.info("created %s %s", kind, name)


def _owner(found: Object) -> _Owner | None:
    """The version that an object is of; None for one that carries the label alone."""
    annotations = found["metadata"].get("annotations") or {}
    is_whole = MODEL in annotations and VERSION in annotations
    return (annotations[MODEL], annotations[VERSION]) if is_whole else None


def _wait(deployment: Object, pod: Object | None) -> SmeltError:
    """Why a Deployment has no available pod: an error once it counts as failed."""
    status = deployment.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or []}
    # A quota or an admission controller refuses the Pod and not the Deployment.
    refused = conditions.get("ReplicaFailure") or {}
    refusal = refused.get("message") or "" if refused.get("status") == "True" else ""
    why = f"Deployment {deployment['metadata']['name']}: {wait_reason(pod, refusal)}"
    progress = conditions.get("Progressing") or {}
    if progress.get("reason") == "ProgressDeadlineExceeded":
        return ExternalServerError(f"{why}; {progress.get('message') or progress['reason']}")
    return NotReadyError(why)
