"""How a replica joins requests: part of a recipe, in Triton's terms where it has one.

Levels of priority run from 1, the highest, to `priority_levels`. A request names one by its
parameter `priority`; 0, nothing, or a level that there is not means `default_priority`. As in
Triton each level has queue bounds of its own, of requests and of bytes, so that a flood of one
level refuses none of another.
"""

from typing import Self

from pydantic import Field, model_validator

from services.contracts.model.document import Document

# What a replica holds for requests that wait, where a recipe does not say. Deadlines and bytes are
# what bounds a queue; the number is for requests that have neither, and far above what clients
# have open at a time (Triton has no limit by default).
MAX_QUEUE_BYTES = 1 << 30
MAX_QUEUE = 4096


class QueuePolicy(Document):
    """What holds for the requests of one level while they wait.

    Attributes:
        max_queue: requests of the level that may wait in a replica; None: the queue's own
            `max_queue` says it.
        default_timeout_ms: longest wait of a request that names none; 0 for any.
        max_timeout_ms: longest wait that a request may ask for by its parameter `timeout`; 0
            for any. One that asks for more, or for none, gets this.
    """

    max_queue: int | None = Field(default=None, ge=1)
    default_timeout_ms: float = Field(default=0.0, ge=0)
    max_timeout_ms: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if 0 < self.max_timeout_ms < self.default_timeout_ms:
            raise ValueError(
                f"expected default_timeout_ms <= max_timeout_ms, got {self.default_timeout_ms:g} "
                f"and {self.max_timeout_ms:g}"
            )
        return self

    def timeout_s(self, asked_s: float | None) -> float | None:
        """How long a request may wait that asked for this; None for any time."""
        wanted_s = self.default_timeout_ms / 1000 if asked_s is None else asked_s
        limit_s = self.max_timeout_ms / 1000
        if limit_s and (not wanted_s or wanted_s > limit_s):
            return limit_s
        return wanted_s or None


class Batching(Document):
    """How a replica forms batches.

    Attributes:
        batch_dim: the dynamic dimension along which requests are joined; None serves one by one.
        max_delay_ms: longest wait for companions while the engine is idle. It ends as soon as
            what waits fills a bucket.
        max_queue: requests waiting in a replica before it answers overloaded; where there are
            levels, of each level whose policy does not say another number.
        max_queue_bytes: bytes of the requests of all levels that wait in a replica, before it
            answers overloaded; None: MAX_QUEUE_BYTES. Each level has an equal part of them. A
            request counts as what it holds: its arrays, or its message where that is larger, and
            64 for each string (BYTES), which is an object.
        max_waste: largest share of a batch that may be padding to the longest request in it.
        priority_levels: levels of priority; 0 for a single queue.
        default_priority: level of requests that name none; needed where there are levels.
        default_queue_policy: for levels that `queue_policies` does not name.
        queue_policies: by level.
    """

    batch_dim: str | None = "batch"
    max_delay_ms: float = Field(default=0.0, ge=0)
    max_queue: int = Field(default=MAX_QUEUE, ge=1)
    # Left out when it is not given: what is of an older release refuses keys it does not know.
    max_queue_bytes: int | None = Field(default=None, ge=1, exclude_if=lambda v: v is None)
    max_waste: float = Field(default=0.25, ge=0, lt=1)
    priority_levels: int = Field(default=0, ge=0, le=64)
    default_priority: int = Field(default=0, ge=0)
    default_queue_policy: QueuePolicy = QueuePolicy()
    queue_policies: dict[int, QueuePolicy] = {}

    @model_validator(mode="after")
    def _are_levels_known(self) -> Self:
        known = f"1 to priority_levels {self.priority_levels}"
        if self.priority_levels and not 1 <= self.default_priority <= self.priority_levels:
            raise ValueError(f"expected default_priority from {known}, got {self.default_priority}")
        if not self.priority_levels and self.default_priority:
            raise ValueError(
                f"default_priority is {self.default_priority}, but there are no levels: set "
                "priority_levels"
            )
        for level in self.queue_policies:
            if not 1 <= level <= self.priority_levels:
                raise ValueError(f"queue_policies: expected levels from {known}, got {level}")
        return self

    def level(self, priority: int) -> int:
        """The level of a request with this priority; 0 where there are no levels."""
        return priority if 1 <= priority <= self.priority_levels else self.default_priority

    @property
    def levels(self) -> range:
        """All levels, the highest first; 0 alone where there are none."""
        return range(1, self.priority_levels + 1) if self.priority_levels else range(1)

    def room(self, level: int) -> int:
        """Requests of a level that may wait in a replica."""
        return self.policy(level).max_queue or self.max_queue

    @property
    def level_bytes(self) -> float:
        """Bytes of the requests of one level that may wait in a replica."""
        return (self.max_queue_bytes or MAX_QUEUE_BYTES) / len(self.levels)

    def policy(self, level: int) -> QueuePolicy:
        """What holds for a level."""
        return self.queue_policies.get(level, self.default_queue_policy)
