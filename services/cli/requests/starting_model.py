"""Waits for a model whose replicas are starting, as one that was just added."""

import time
from collections.abc import Callable

import grpc

from services.cli.output.progress import Steps
from services.pb import open_inference_v2_pb2 as pb

PERIOD_S = 0.5


def wait_until_started(
    index: Callable[[], pb.RepositoryIndexResponse], name: str, version: str, timeout_s: float
) -> bool:
    """Wait while a model's replicas are starting, with what keeps them as progress.

    Args:
        index: asks the gateway for its repository index.
        name: of the model.
        version: "" is any.
        timeout_s: of the whole wait; then it returns too.

    Returns:
        Whether it waited, so that another request may have another answer.
    """
    why = _why_starting(index, name, version)
    if not why:
        return False
    ends_s = time.monotonic() + timeout_s
    with Steps().step(f"Model {name}") as line:
        line.update(why)
        while why and time.monotonic() < ends_s:
            # A watch of its health would not end where the load fails.
            time.sleep(PERIOD_S)  # the index sends no notifications
            line.wait(why)
            why = _why_starting(index, name, version)
    return True


def _why_starting(index: Callable[[], pb.RepositoryIndexResponse], name: str, version: str) -> str:
    """What the newest version that is starting waits for; "" where one is ready, or none starts."""
    try:
        asked = [e for e in index().models if e.name == name and version in ("", e.version)]
    except grpc.RpcError:
        # Not for each token; the answer to the request says what is wrong.
        return ""
    starting = [e.reason or "replicas are starting" for e in asked if e.state == "LOADING"]
    is_ready = any(each.state == "READY" for each in asked)
    return starting[-1] if starting and not is_ready else ""
