"""The calls that wait in a replica: one line for each level of priority, oldest first.

How long a call may wait is known when it comes: its client's deadline, its parameter `timeout`
and the policy of its level, whichever ends first. Calls that nobody waits for any more make room
when a line is full, and are passed over when a batch is formed.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

from services.contracts.batching import MAX_QUEUE_BYTES, Batching
from services.contracts.durations import milliseconds
from services.contracts.errors import DeadlineExceededError, OverloadedError
from services.contracts.tensors import Array
from services.replica.codec import InferCall

_LOOK_EVERY_S = 0.005


class Dropped(StrEnum):
    """What became of a request that got no answer of the engine, or got it in vain."""

    REFUSED = "refused"  # as too many waited
    EXPIRED = "expired"  # before a batch took it
    CANCELLED = "cancelled"  # likewise
    DISCARDED = "discarded"  # while the engine ran it


@dataclass(eq=False, slots=True)
class Waiting:
    """A call that waits; times are of the batcher's clock, in seconds.

    Attributes:
        finish: makes the answer of the call's outputs.
        on_failure: called when there is none.
        level: of priority; see `contracts.batching`.
        deadline_s: nobody wants the answer of a run that would begin later.
        num_bytes: what it counts for against `max_queue_bytes`.
    """

    call: InferCall
    finish: Callable[[dict[str, Array]], Any]
    on_failure: Callable[[], None]
    answer: asyncio.Future[Any]
    arrived_s: float
    level: int = 0
    deadline_s: float | None = None
    num_bytes: int = 0

    def fail(self, error: Exception) -> None:
        """Give an error for an answer, unless there is one or nobody waits for it."""
        if not self.answer.done():
            self.on_failure()
            self.answer.set_exception(error)


class WaitingLine:
    """Calls in the order in which they are due: by level, then by arrival."""

    def __init__(
        self,
        batching: Batching,
        clock: Callable[[], float],
        *,
        on_dropped: Callable[[Dropped], None] = lambda _: None,
    ) -> None:
        """Begin empty; `on_dropped` is called for each call that is refused or waited too long."""
        self._batching, self._clock = batching, clock
        self._on_dropped = on_dropped
        # A mapping keeps the order and lets a call leave from the middle at once.
        self._lines: Mapping[int, dict[Waiting, None]] = {level: {} for level in batching.levels}
        self._num, self._most = 0, batching.max_waiting
        self._num_bytes, self._most_bytes = 0, batching.max_queue_bytes or MAX_QUEUE_BYTES
        self._look_again_s = -math.inf

    def __len__(self) -> int:
        """Calls that wait, those that nobody wants any more included."""
        return self._num

    def __iter__(self) -> Iterator[Waiting]:
        """In the order in which they are due; nothing may be added or removed meanwhile."""
        for line in self._lines.values():
            yield from line

    def check_room(self) -> None:
        """Refuse when no more call may wait, of whatever level.

        Raises:
            OverloadedError: says how many wait and may.
        """
        if self._num < self._most and self._num_bytes < self._most_bytes:
            return
        self._make_room()
        if self._num >= self._most:
            found = f"{self._num} requests wait in this replica, at most {self._most} may"
            # Where there are levels, all of them are full.
            self._refuse(found, _setting(self._batching, 0))
        if self._num_bytes >= self._most_bytes:
            found = (
                f"requests of {self._num_bytes} bytes wait in this replica, at most "
                f"{self._most_bytes} may"
            )
            self._refuse(found, "max_queue_bytes")

    def _check_level(self, level: int) -> None:
        line, most = self._lines[level], self._batching.room(level)
        if len(line) < most:
            return
        self._make_room()
        if len(line) >= most:
            found = f"{len(line)} requests wait at priority level {level} in this replica"
            self._refuse(f"{found}, at most {most} may", _setting(self._batching, level))

    def _make_room(self) -> None:
        # Calls nobody waits for any more must not push out one that somebody does. Most leave by
        # themselves; looking through a long line for each that is refused would hold up all.
        now_s = self._clock()
        if now_s >= self._look_again_s:
            self._look_again_s = now_s + _LOOK_EVERY_S
            self.drop_unwanted()

    def _refuse(self, found: str, setting: str) -> NoReturn:
        self._on_dropped(Dropped.REFUSED)
        raise OverloadedError(
            f"exceeds maximum queue size: {found}; retry, or raise {setting} in the recipe"
        )

    def add(self, waiting: Waiting, timeout_s: float | None) -> None:
        """Let a call wait behind those of its level.

        Args:
            waiting: with its client's deadline.
            timeout_s: what it asked for by parameter.

        Raises:
            OverloadedError: no more may wait at its level.
        """
        if waiting.level:  # without levels its bound was met when it was admitted
            self._check_level(waiting.level)
        allowed_s = self._batching.policy(waiting.level).timeout_s(timeout_s)
        if allowed_s is not None:
            ends_s = waiting.arrived_s + allowed_s
            own_s = waiting.deadline_s
            waiting.deadline_s = ends_s if own_s is None else min(own_s, ends_s)
        self._lines[waiting.level][waiting] = None
        self._num += 1
        self._num_bytes += waiting.num_bytes

    def remove(self, waiting: Waiting) -> bool:
        """Take a call out; returns whether it was still there."""
        try:
            del self._lines[waiting.level][waiting]
        except KeyError:
            return False
        self._num -= 1
        self._num_bytes -= waiting.num_bytes
        return True

    def clear(self) -> None:
        """Take all calls out."""
        for line in self._lines.values():
            line.clear()
        self._num = self._num_bytes = 0

    def drop_unwanted(self) -> float | None:
        """Take out what nobody waits for; returns the next deadline, None without any."""
        for waiting in [each for each in self if not self.is_wanted(each)]:
            self.remove(waiting)
        return min((w.deadline_s for w in self if w.deadline_s is not None), default=None)

    def is_wanted(self, waiting: Waiting) -> bool:
        """Whether a call's answer is still wanted; fails it when its deadline has passed.

        One that is not is to be taken out at once: it is counted here.
        """
        if waiting.answer.done():
            self._on_dropped(Dropped.CANCELLED)
            return False
        if waiting.deadline_s is not None and waiting.deadline_s <= self._clock():
            waited_s = self._clock() - waiting.arrived_s
            allowed_s = max(waiting.deadline_s - waiting.arrived_s, 0.0)
            waiting.fail(
                DeadlineExceededError(
                    f"request timeout expired: it waited {milliseconds(waited_s)} in the queue of "
                    f"a replica, {milliseconds(allowed_s)} were left to it there; it never ran"
                )
            )
            self._on_dropped(Dropped.EXPIRED)
            return False
        return True


def _setting(batching: Batching, level: int) -> str:
    """What bounds a level, in words."""
    if batching.policy(level).max_queue is None:
        return "max_queue"
    return f"max_queue of priority level {level}" if level else "max_queue of default_queue_policy"
