"""What decides whether more replicas would answer more requests; see `services.replica.scaling`."""

import time
from collections.abc import Callable

import psutil

from services.engines.device.gpu_busy import gpu_busy_share
from services.replica.batching.batch_report import BatcherTimes

_FULL = 100.0


class ReplicaLoad:
    """What was done since the last look."""

    def __init__(
        self, times: Callable[[], BatcherTimes], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin to count.

        Args:
            times: what the batcher has counted since it began.
            clock: monotonic seconds, the batcher's.
        """
        self._times = times
        self._clock = clock
        self._before = times()
        self._before_s = clock()
        psutil.cpu_percent(None)

    def sample(self) -> dict[str, float]:
        """Means since the last call; blocks for some milliseconds.

        Shares of the time, each from 0 to 1: busy: the batcher had requests. pressed: it ran a
        batch that had waited for the one before. gpu: any process ran a kernel, 0 where that is
        unknown. processors: of the host, all that anybody took. And calls: that ran, a second.
        """
        now = self._times()
        now_s = self._clock()
        passed_s = max(now_s - self._before_s, 1e-9)
        busy_s = now.busy_s - self._before.busy_s
        pressed_s = now.pressed_s - self._before.pressed_s
        num_calls = now.num_calls - self._before.num_calls
        self._before = now
        self._before_s = now_s
        return {
            "busy": min(busy_s / passed_s, 1.0),
            "pressed": min(pressed_s / passed_s, 1.0),
            "gpu": gpu_busy_share() or 0.0,
            "processors": psutil.cpu_percent(None) / _FULL,
            "calls": num_calls / passed_s,
        }
