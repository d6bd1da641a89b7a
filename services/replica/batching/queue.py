"""The calls that wait in a replica: one queue for each level of priority, oldest first.

How long a call may wait is known when it comes: its client's deadline, its parameter `timeout`
and the policy of its level, whichever ends first. Calls whose clients are gone free their place
when a queue is full, and are passed over when a batch is formed. Calls of a batch that failed
wait again, before all others of their levels, and run with a part of it. More urgent ones go before
them, though no more than a batch at a time: what fails and is urgent must not hold up all else.
"""

import asyncio
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from services.contracts.errors import DeadlineExceededError, OverloadedError
from services.contracts.kserve.tensors import Array
from services.contracts.model.batching import Batching
from services.contracts.text.durations import milliseconds
from services.replica.batching.expiry import LOOK_EVERY_S
from services.replica.request.infer_call import InferCall


class Dropped(StrEnum):
    """What became of a request that got no answer of the engine, or got it too late."""

    REFUSED = "refused"  # as too many waited
    EXPIRED = "expired"  # while it waited
    CANCELLED = "cancelled"  # likewise
    DISCARDED = "discarded"  # while the engine ran it


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """A call that waits; times are of the batcher's clock, in seconds.

    Attributes:
        call: what texts became takes their place.
        finish: makes the answer of the call and its outputs.
        on_failure: called when there is none; with the error, None when it was cancelled.
        level: of priority; see `contracts.model.batching`.
        deadline_s: a run that would begin later is not wanted.
        num_bytes: what it counts for against `max_queue_bytes`.
        is_ready: a batch may take it; texts are to be tokenised first.
    """

    call: InferCall
    finish: Callable[[InferCall, dict[str, Array]], Any]
    on_failure: Callable[[Exception | None], None]
    answer: asyncio.Future[Any]
    arrived_s: float
    level: int = 0
    deadline_s: float | None = None
    num_bytes: int = 0
    is_ready: bool = True

    def fail(self, error: Exception) -> None:
        """Give an error for an answer, unless there is one or its client is gone."""
        if not self.answer.done():
            self.on_failure(error)
            self.answer.set_exception(error)


@dataclass(slots=True)
class _Level:
    """What waits at one level, and may.

    Attributes:
        calls: that no batch has taken yet; a mapping keeps the order and lets a call leave from
            the middle at once.
        again: of batches that failed, with the number of the part that each is to run with.
        texts: that are not ready, those that the tokenizer has included.
        has_stood_back: a batch of more urgent calls went before what waits again.
    """

    most: int
    most_bytes: float
    calls: dict[QueuedRequest, None] = field(default_factory=dict)
    again: dict[QueuedRequest, int] = field(default_factory=dict)
    texts: dict[QueuedRequest, None] = field(default_factory=dict)
    num_bytes: int = 0
    has_stood_back: bool = False

    @property
    def num_calls(self) -> int:
        """All that wait here."""
        return len(self.calls) + len(self.again) + len(self.texts)

    def has_room(self) -> bool:
        """Whether one more may wait; asked thrice for each request, so nothing is called."""
        num_calls = len(self.calls) + len(self.again) + len(self.texts)
        return num_calls < self.most and self.num_bytes < self.most_bytes

    @property
    def used(self) -> float:
        """The share of its fullest bound that is taken."""
        return max(self.num_calls / self.most, self.num_bytes / self.most_bytes)

    def next_part(self) -> list[QueuedRequest]:
        """Those that are to run together next, of what waits again."""
        part = next(iter(self.again.values()), None)
        return [waiting for waiting, number in self.again.items() if number == part]


class RequestQueue:
    """Calls in the order in which they are due: by level, then by arrival."""

    def __init__(
        self,
        batching: Batching,
        clock: Callable[[], float],
        *,
        on_dropped: Callable[[Dropped], None] = lambda _: None,
    ) -> None:
        """Begin empty.

        Args:
            batching: levels, room of each, and how long a call may wait.
            clock: seconds of a monotonic clock.
            on_dropped: is called for each call that is refused or waited too long.
        """
        self._batching = batching
        self._clock = clock
        self._on_dropped = on_dropped
        self._levels: Mapping[int, _Level] = {
            level: _Level(batching.room(level), batching.level_bytes) for level in batching.levels
        }
        self._parts = itertools.count()
        self._num = 0
        self._look_again_s = -math.inf

    def __len__(self) -> int:
        """Calls that wait, those whose clients are gone included."""
        return self._num

    def __iter__(self) -> Iterator[QueuedRequest]:
        """Those that a new batch may take, as they are due; none may come or go meanwhile.

        Not those of levels where some wait again, nor of levels below: these go first.
        """
        for level in self._levels.values():
            if level.again:
                return
            yield from level.calls

    @property
    def all(self) -> Iterator[QueuedRequest]:
        """Everything that waits; none may come or go meanwhile."""
        for level in self._levels.values():
            yield from level.again
            yield from level.calls
        yield from self.texts

    @property
    def texts(self) -> Iterator[QueuedRequest]:
        """What is to be tokenised, as it is due; none may come or go meanwhile."""
        for level in self._levels.values():
            yield from level.texts

    @property
    def is_any_ready(self) -> bool:
        """Whether a batch could take something."""
        return any(level.calls or level.again for level in self._levels.values())

    @property
    def used(self) -> float:
        """The share of the fullest bound that is taken: at 1 a level refuses more."""
        return max(level.used for level in self._levels.values())

    def check_any_room(self) -> None:
        """Refuse when no more call may wait, of whatever level; raises OverloadedError."""
        if self._has_any_room():
            return
        self._make_room()
        if self._has_any_room():
            return
        if len(self._levels) == 1:
            self.check_room(next(iter(self._levels)))
        self._on_dropped(Dropped.REFUSED)
        raise OverloadedError(
            "exceeds maximum queue size: every priority level of this replica's queue is full; "
            "retry, or raise max_queue or max_queue_bytes in the recipe"
        )

    def _has_any_room(self) -> bool:
        return any(map(_Level.has_room, self._levels.values()))

    def check_room(self, level: int) -> None:
        """Refuse when no more call of a level may wait.

        Raises:
            OverloadedError: with the number that waits and the bound.
        """
        found = self._levels[level]
        if found.has_room():
            return
        self._make_room()
        if found.has_room():
            return
        where = f"at priority level {level} in this replica" if level else "in this replica"
        if found.num_calls >= found.most:
            words = f"{found.num_calls} requests wait {where}, at most {found.most} may"
            setting = _setting(self._batching, level)
        else:
            words = (
                f"requests of {found.num_bytes} bytes wait {where}, at most "
                f"{found.most_bytes:.0f} may"
            )
            setting = "max_queue_bytes"
        self._on_dropped(Dropped.REFUSED)
        raise OverloadedError(
            f"exceeds maximum queue size: {words}; retry, or raise {setting} in the recipe"
        )

    def _make_room(self) -> None:
        # Calls whose clients are gone must not push out one that is wanted. Most leave with their
        # client; looking through a long queue for each that is refused would hold up all.
        now_s = self._clock()
        if now_s >= self._look_again_s:
            self._look_again_s = now_s + LOOK_EVERY_S
            self.drop_unwanted()

    def add(self, waiting: QueuedRequest, timeout_s: float | None) -> None:
        """Let a call wait behind those of its level; whether there is room was asked before.

        Args:
            waiting: with its client's deadline.
            timeout_s: what it asked for by parameter.
        """
        allowed_s = self._batching.policy(waiting.level).timeout_s(timeout_s)
        if allowed_s is not None:
            ends_s = waiting.arrived_s + allowed_s
            own_s = waiting.deadline_s
            waiting.deadline_s = ends_s if own_s is None else min(own_s, ends_s)
        level = self._levels[waiting.level]
        (level.calls if waiting.is_ready else level.texts)[waiting] = None
        level.num_bytes += waiting.num_bytes
        self._num += 1

    def put_back(self, calls: Sequence[QueuedRequest], most: int) -> None:
        """Let the calls of a batch that failed wait again, before all others of their levels.

        They run in parts of at most so many, each of one level. A part goes behind those that
        wait again already: its sister runs before it is cut once more, and where that goes
        well the engine is not the cause.
        """
        for number, level in self._levels.items():
            own = [waiting for waiting in calls if waiting.level == number]
            # For those that it stood back with, who may have left.
            level.has_stood_back &= bool(level.again)
            for at in range(0, len(own), most):
                level.again |= dict.fromkeys(own[at : at + most], next(self._parts))
            level.num_bytes += sum(waiting.num_bytes for waiting in own)
        self._num += len(calls)

    def take_again(self) -> list[QueuedRequest]:
        """Take the part of a failed batch that is due before all else; empty when there is none."""
        while level := self._first_again():
            is_outranked = next(iter(self), None) is not None
            if is_outranked and not level.has_stood_back:
                level.has_stood_back = True
                return []
            level.has_stood_back = False
            part = level.next_part()
            wanted = [waiting for waiting in part if self._is_wanted(waiting, has_run=True)]
            for waiting in part:
                self.remove(waiting)
            if wanted:
                return wanted
        return []

    def _first_again(self) -> _Level | None:
        return next((level for level in self._levels.values() if level.again), None)

    def remove(self, waiting: QueuedRequest) -> bool:
        """Take a call out; returns whether it was still there."""
        level = self._levels[waiting.level]
        for place in (level.calls, level.again, level.texts):
            if waiting in place:
                del place[waiting]
                self._num -= 1
                level.num_bytes -= waiting.num_bytes
                return True
        return False

    def clear(self) -> None:
        """Take all calls out."""
        for waiting in list(self.all):
            self.remove(waiting)

    def drop_unwanted(self) -> float | None:
        """Take out what is not wanted any more; returns the next deadline, None without any."""
        for waiting in [each for each in self.all if not self.is_wanted(each)]:
            self.remove(waiting)
        return min((w.deadline_s for w in self.all if w.deadline_s is not None), default=None)

    def is_wanted(self, waiting: QueuedRequest) -> bool:
        """Whether a call's answer is still wanted; fails it when its deadline has passed.

        One that is not is to be taken out at once: it is counted here.
        """
        has_run = waiting in self._levels[waiting.level].again
        return self._is_wanted(waiting, has_run=has_run)

    def _is_wanted(self, waiting: QueuedRequest, *, has_run: bool) -> bool:
        if waiting.answer.done():
            self._on_dropped(Dropped.CANCELLED)
            return False
        now_s = self._clock()
        if waiting.deadline_s is not None and waiting.deadline_s <= now_s:
            waiting.fail(_expired(waiting, now_s, has_run=has_run))
            self._on_dropped(Dropped.EXPIRED)
            return False
        return True


def _expired(waiting: QueuedRequest, now_s: float, *, has_run: bool) -> DeadlineExceededError:
    waited_s = now_s - waiting.arrived_s
    allowed_s = max((waiting.deadline_s or 0.0) - waiting.arrived_s, 0.0)
    end = "it ran in a batch that failed, and was to run again" if has_run else "it never ran"
    return DeadlineExceededError(
        f"request timeout expired: it waited {milliseconds(waited_s)} in the queue of a replica, "
        f"{milliseconds(allowed_s)} were left to it there; {end}"
    )


def _setting(batching: Batching, level: int) -> str:
    """What bounds a level, in words."""
    if batching.policy(level).max_queue is None:
        return "max_queue"
    return f"max_queue of priority level {level}" if level else "max_queue of default_queue_policy"
