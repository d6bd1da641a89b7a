"""The objects of one namespace that carry a label of Smelt: listed and deleted."""

from collections.abc import Mapping
from typing import Any

from lightkube import Client, operators
from lightkube.types import CascadeType

from services.controller.platform.kubernetes.client import (
    CONFLICT,
    NOT_FOUND,
    REQUEST_ERRORS,
    explained,
    status_code,
)

Object = dict[str, Any]


class LabelledObjects:
    """Safe to use from several threads."""

    def __init__(self, client: Client, namespace: str, label: str) -> None:
        """Nothing is asked of the cluster yet.

        Args:
            client: of the cluster.
            namespace: where the objects are.
            label: its key.
        """
        self._client = client
        self._namespace = namespace
        self._label = label

    def list(self, resource: Any) -> list[Object]:
        """Objects that carry the label, whatever its value; raises NotReadyError."""
        try:
            found = self._client.list(
                resource, namespace=self._namespace, labels={self._label: operators.exists()}
            )
            objects: list[Object] = [one.to_dict() for one in found]
        except REQUEST_ERRORS as error:
            raise self.explained(error, "list", resource) from error
        # The selector spares traffic; the label decides.
        return [one for one in objects if self.label_of(one)]

    def newest(self, resource: Any) -> dict[str, Object]:
        """Of each value of the label, the object that was created last; raises NotReadyError."""
        found = sorted(self.list(resource), key=_created)
        return {self.label_of(one): one for one in found}

    def create(self, found: Any) -> bool:
        """Create one of lightkube's objects; False where there is one of its kind and name.

        Raises:
            NotReadyError: the cluster is out of reach, or forbids it.
            InvalidRequestError: the cluster finds it invalid.
        """
        try:
            self._client.create(found, namespace=self._namespace)
        except REQUEST_ERRORS as error:
            if status_code(error) != CONFLICT:
                raise self.explained(error, "create", type(found)) from error
            return False
        return True

    def delete(self, resource: Any, name: str) -> None:
        """Delete an object and, in the background, what it owns.

        Args:
            resource: lightkube's class of it.
            name: of the object; it may be gone.

        Raises:
            NotReadyError: the cluster is out of reach, or forbids it.
        """
        try:
            # By default the API leaves the Pod of a deleted Job running.
            self._client.delete(
                resource, name, namespace=self._namespace, cascade=CascadeType.BACKGROUND
            )
        except REQUEST_ERRORS as error:
            if status_code(error) != NOT_FOUND:
                raise self.explained(error, "delete", resource) from error

    def label_of(self, found: Mapping[str, Any]) -> str:
        """The label's value; "" without one."""
        return str((found["metadata"].get("labels") or {}).get(self._label, ""))

    def explained(self, error: Exception, verb: str, resource: Any) -> Exception:
        """See `client.explained`."""
        return explained(error, verb, resource, self._namespace)


def _created(found: Object) -> str:
    return str(found["metadata"].get("creationTimestamp", ""))
