"""How often a queue is looked through for what has expired, on a loop whose time is made up."""

import asyncio
import selectors

from services.contracts.errors import DeadlineExceededError
from services.contracts.model.batching import Batching
from services.replica.batching.expiry import LOOK_EVERY_S, Expiry
from services.replica.batching.queue import QueuedRequest, RequestQueue
from tests.unit.services.replica.toy_batcher import text_call

NUM_CALLS = 2000
APART_S = 0.0005


class Time(selectors.DefaultSelector):
    """Has what a loop waits for come at once: seconds pass where the loop would sleep."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Events that are there."""
        self.now_s += max(timeout or 0.0, 0.0)
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """A loop of that time."""

    def __init__(self, time: Time) -> None:
        super().__init__(time)
        self._made_up = time

    def time(self) -> float:
        """Seconds that it would have slept."""
        return self._made_up.now_s


async def looks_until_all_expired() -> tuple[list[float], int]:
    """When a queue was looked through whose calls expire one by one, and how many did."""
    loop = asyncio.get_running_loop()
    answers = [loop.create_future() for _ in range(NUM_CALLS)]
    looks_s = list[float]()
    has_ended = asyncio.Event()
    line = RequestQueue(Batching(max_queue=NUM_CALLS), loop.time)

    def drop() -> float | None:
        looks_s.append(loop.time())
        next_s = line.drop_unwanted()
        if next_s is None:
            has_ended.set()
        return next_s

    expiry = Expiry(drop, loop.time)
    call = text_call()
    for number, answer in enumerate(answers, 1):
        deadline_s = number * APART_S
        line.add(
            QueuedRequest(call, dict, lambda _: None, answer, 0.0, deadline_s=deadline_s), None
        )
        expiry.wake_by(deadline_s)
    await has_ended.wait()
    return looks_s, sum(isinstance(each.exception(), DeadlineExceededError) for each in answers)


def test_a_queue_is_looked_through_now_and_then_and_not_for_each_deadline() -> None:
    with asyncio.Runner(loop_factory=lambda: Loop(Time())) as runner:
        looks_s, num_expired = runner.run(looks_until_all_expired())
    assert num_expired == NUM_CALLS
    assert len(looks_s) <= NUM_CALLS * APART_S / LOOK_EVERY_S + 2
    assert APART_S <= looks_s[0] < LOOK_EVERY_S
