"""Finds the cluster, and explains why it refused a request."""

import contextlib
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any, Final

import httpx2
import yaml
from lightkube import AsyncClient, Client, KubeConfig
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core import decoders
from lightkube.core.exceptions import ConfigError
from lightkube.core.resource import api_info
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Event, Node, Pod, Service

from services.contracts.errors import (
    InvalidRequestError,
    NotReadyError,
    SmeltError,
)

FIELD_MANAGER = "smelt-controller"
CONFLICT = 409
NOT_FOUND = 404
# What lightkube raises when a request fails: no answer, a bad one, no credentials.
REQUEST_ERRORS: Final = (httpx2.HTTPError, ConfigError)
_UNAUTHORIZED = 401
_FORBIDDEN = 403
# A body that cannot be decoded, and an object that fails validation.
_REFUSED_CONTENT = (400, 422)
# Quotas and admission hooks also answer 403, and no further right would help.
_BY_POLICY = re.compile("exceeded quota|admission|denied the request")
_reading_types = threading.Lock()


def find_cluster() -> SingleConfig:
    """The cluster this process is in, else that of KUBECONFIG or ~/.kube/config.

    Raises:
        InvalidRequestError: no cluster is configured, or its configuration cannot be read.
    """
    try:
        config = KubeConfig.from_env().get()
    # A kubeconfig of another shape is found out by whatever lightkube trips over first.
    except (ConfigError, OSError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise InvalidRequestError(
            f"no Kubernetes cluster found: {error}; run inside a pod with a ServiceAccount, or "
            "set KUBECONFIG to a kubeconfig file that has a current context"
        ) from error
    if config is None:
        raise InvalidRequestError("no Kubernetes cluster found: kubeconfig has no current context")
    return config


def async_client(cluster: SingleConfig, namespace: str) -> AsyncClient:
    """A client for an event loop; raises InvalidRequestError."""
    with _opened():
        client = AsyncClient(config=cluster, namespace=namespace)
    # lightkube closes the stream of a refused watch before its body, which has the reason, is
    # read; it passes no hooks on to its HTTP client.
    http = client._client._client  # noqa: SLF001 - see above
    http.event_hooks = {"response": [_read_refusal]}
    return client


def blocking_client(cluster: SingleConfig, namespace: str) -> Client:
    """A client for threads; raises InvalidRequestError."""
    with _opened():
        return Client(config=cluster, namespace=namespace, field_manager=FIELD_MANAGER)


async def _read_refusal(response: httpx2.Response) -> None:
    if response.is_error:
        await response.aread()


@contextlib.contextmanager
def _opened() -> Iterator[None]:
    # Its HTTP library logs each request, as many as there are build tasks and more.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    _read_answer_types()
    try:
        yield
    except (ConfigError, OSError, ValueError) as error:
        raise InvalidRequestError(
            f"the Kubernetes cluster's certificates or credentials cannot be read: {error}; "
            "check the kubeconfig, or the ServiceAccount that is mounted into this pod"
        ) from error


def _read_answer_types() -> None:
    """Have msgspec read the type of each answer that this package decodes, in one thread.

    It does so at the first answer of a type, and two threads that have theirs at once crash the
    process (msgspec 0.22).
    """
    with _reading_types:
        for resource in (Deployment, Event, Job, Node, Pod, Service):
            decoders.decode_list(b'{"items": []}', resource)
        decoders.decode_status(b"{}")
        decoders.decode_watch_event(b'{"type": "", "object": null}')


def status_code(error: Exception) -> int | None:
    """HTTP status of what the API server answered; None when it did not answer.

    An error inside a watch's stream has a Status object and no response, one before the
    stream a response and no Status.
    """
    code = getattr(getattr(error, "status", None), "code", None)
    if code is None:
        code = getattr(getattr(error, "response", None), "status_code", None)
    return int(code) if code is not None else None


def explained(error: Exception, verb: str, resource: Any, namespace: str | None) -> SmeltError:
    """The error as a SmeltError: what was tried, where, what came back, and the fix.

    Args:
        error: what lightkube raised.
        verb: of Kubernetes' authorization: get, list, watch, create, delete.
        resource: lightkube's class of what was asked for.
        namespace: where; None for the whole cluster.
    """
    info = api_info(resource)
    # As RBAC rules name it, for example jobs.batch.
    plural = ".".join(filter(None, (info.plural, info.resource.group)))
    where = f"in namespace '{namespace}'" if namespace else "in the cluster"
    what = f"Kubernetes: cannot {verb} {plural} {where}"
    code = status_code(error)
    message = _message(error)
    if code == _FORBIDDEN and not _BY_POLICY.search(message):
        return NotReadyError(
            f"{what}: forbidden (403): {message}. An API server also answers this while it "
            "starts; if it lasts, grant the controller's ServiceAccount the verb "
            f"'{verb}' on {plural} by a Role or ClusterRole"
        )
    if code == _UNAUTHORIZED:
        return NotReadyError(
            f"{what}: the API server does not know this ServiceAccount's token (401). {message}"
        )
    if code in _REFUSED_CONTENT:
        return InvalidRequestError(f"{what}: refused as invalid ({code}). {message}")
    return NotReadyError(f"{what}: {type(error).__name__}: {message or 'no answer'}")


def _message(error: Exception) -> str:
    """The API server's own message, else the first line of the HTTP library's."""
    try:
        answer = getattr(error, "response", None)
        message = answer.json().get("message") if answer is not None else None
    except (ValueError, AttributeError, httpx2.StreamError):
        message = None  # no Status object: a proxy's page, or a body that was not read
    return str(message or error).partition("\n")[0]
