"""One deployment as the controller keeps it."""

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum

from services.controller.interfaces import Unplaced


# From best to worst: `Deployments.state` takes the first that any generation has.
class DeploymentState(StrEnum):
    """Where a deployment is, by the terms of Triton's repository index."""

    READY = "READY"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"
    # Of KServe's ModelMesh: not loaded, and a request loads it.
    STANDBY = "STANDBY"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass
class Deployment:
    """What is kept of a deployment.

    Attributes:
        reason: of its state, for people.
        began_s: monotonic seconds, as all of these.
        ready_s: when it became ready.
        unplaced: why replicas are on no node, since `unplaced_since_s`.
        gpu_share: what Serve gave each replica of a GPU, 0.0 of one that is simulated; None until
            it is asked for.
        task: follows it.
        adopted_s: when one was found that this controller did not start, until replicas attach.
        num_missed: how often in a row Serve did not list it.
    """

    state: DeploymentState
    reason: str = ""
    began_s: float = 0.0
    ready_s: float = 0.0
    unplaced: Unplaced = field(default_factory=Unplaced)
    unplaced_since_s: float = 0.0
    gpu_share: float | None = None
    task: asyncio.Task[None] | None = None
    adopted_s: float | None = None
    num_missed: int = 0
    num_failures: int = 0
    retry_at_s: float = 0.0
