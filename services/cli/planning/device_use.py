"""What one device does for one model: how many replicas it takes, and what they answer together."""

import math
from dataclasses import dataclass

from services.cli.planning.device_simulation import capacity
from services.cli.planning.queue_simulation import ReplicaQueue
from services.cli.planning.replica_memory import ReplicaMemory

# A process that decodes and encodes for less of its time does not bound what a device does.
_HOST_BUSY = 0.5


@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """A device that a model has for itself.

    Attributes:
        queue: of each replica.
        capacity: requests per second of all replicas on it that keep the p99.
        num_replicas: that do so much.
        memory: that each needs of a GPU; None on a CPU, where replicas have threads of their own
            and the host's memory.
    """

    queue: ReplicaQueue
    capacity: float
    num_replicas: int = 1
    memory: ReplicaMemory | None = None

    @property
    def share(self) -> float:
        """Of a GPU's memory, that each replica is given; 0 on a CPU."""
        return self.memory.share if self.memory else 0.0


def device_use(queue: ReplicaQueue, memory: ReplicaMemory | None) -> DeviceUse:
    """One replica, or as many on a GPU as the engine needs to be kept busy and have room there."""
    one = capacity(queue)
    host_s = queue.demand.host_s
    if memory and one * host_s > _HOST_BUSY:
        num = min(int(1 / memory.share), math.ceil(queue.most() * host_s))
        several = capacity(queue, num) if num > 1 else 0.0
        if several > one:
            return DeviceUse(queue=queue, capacity=several, num_replicas=num, memory=memory)
    return DeviceUse(queue=queue, capacity=one, memory=memory)
