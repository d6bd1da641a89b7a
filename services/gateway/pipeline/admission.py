"""Bounds on requests under way: one for the gateway, and one for each model that has one."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from services.contracts.errors import OverloadedError
from services.contracts.text.nearest import nearest
from services.contracts.transport.frames import Payload
from services.gateway.pipeline.inference import InferenceCall, InferenceHandler
from services.grpc_server.limits import SMALL_BYTES

logger = logging.getLogger(__name__)

_SETTING: Final = "SMELT_GATEWAY_MODEL_MAX_IN_FLIGHT"
# Pace is measured over at least this long; a hint lies between these bounds.
_MIN_MEASURED_S = 0.25
_LEAST_HINT_S = 0.01
_LARGEST_HINT_S = 5.0


class Bound:
    """Counts what is under way, and refuses what is more.

    Attributes:
        num_in_flight: admitted and not ended.
    """

    def __init__(
        self, limit: int, whose: str, setting: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Count from zero.

        Args:
            limit: requests that may be under way.
            whose: bound it is, in words for the client.
            setting: that raises it.
            clock: monotonic seconds.
        """
        self.num_in_flight = 0
        self._limit = limit
        self._whose = whose
        self._setting = setting
        self._clock = clock
        self._num_ended = 0
        self._mark_s = clock()
        self._mark_ended = 0
        self._hint_s = _LEAST_HINT_S

    def enter(self) -> None:
        """Count one more; raises OverloadedError when there are too many."""
        if self.num_in_flight >= self._limit:
            raise OverloadedError(
                f"{self._whose} has {self.num_in_flight} requests in flight, its bound is "
                f"{self._limit}; retry later or raise {self._setting}",
                retry_after_s=self.retry_after_s(),
            )
        if not self.num_in_flight:
            # The rate is that of busy times: an hour without requests is no low rate.
            self._mark_s = self._clock()
            self._mark_ended = self._num_ended
        self.num_in_flight += 1

    def leave(self) -> None:
        """One that entered has ended."""
        self.num_in_flight -= 1
        self._num_ended += 1

    def retry_after_s(self) -> float:
        """How long it will take, at the pace of late, until all that is under way has ended.

        By then those that were admitted before are through, and with them the queue in which
        a refused one would stand.
        """
        took_s = self._clock() - self._mark_s
        num_ended = self._num_ended - self._mark_ended
        if took_s >= _MIN_MEASURED_S:
            self._mark_s = self._clock()
            self._mark_ended = self._num_ended
            wait_s = self.num_in_flight * took_s / num_ended if num_ended else took_s
            self._hint_s = min(max(wait_s, _LEAST_HINT_S), _LARGEST_HINT_S)
        return self._hint_s


class AdmittedInference:
    """Refuses requests beyond the gateway's bounds, before their bytes are looked at.

    Large requests reserve memory from when they begin to come, so that the bytes of
    others alone are counted here.
    """

    def __init__(self, inner: InferenceHandler, max_in_flight: int, max_bytes: int) -> None:
        """Put bounds before a handler.

        Args:
            inner: answers what is admitted.
            max_in_flight: requests that may be under way at a time.
            max_bytes: that requests of up to SMALL_BYTES may have together while they are under
                way.
        """
        self._inner = inner
        self._bound = Bound(max_in_flight, "this gateway", "SMELT_GATEWAY_MAX_IN_FLIGHT")
        self._max_bytes = max_bytes
        self._num_bytes = 0

    async def answer(self, call: InferenceCall) -> Payload:
        """Answer; raises OverloadedError when too many requests are under way."""
        num_bytes = len(call.body)
        if num_bytes > SMALL_BYTES:
            num_bytes = 0
        elif self._num_bytes and self._num_bytes + num_bytes > self._max_bytes:
            raise OverloadedError(
                f"this gateway has requests of {self._num_bytes} bytes in flight, its bound is "
                f"{self._max_bytes}; retry later or raise SMELT_GATEWAY_MAX_UPLOAD_BYTES, of which "
                "it is half",
                retry_after_s=self._bound.retry_after_s(),
            )
        self._bound.enter()
        self._num_bytes += num_bytes
        try:
            return await self._inner.answer(call)
        finally:
            self._num_bytes -= num_bytes
            self._bound.leave()


class ModelBounds:
    """The bound of each model, over all its versions."""

    def __init__(self, default: int | None, by_model: Mapping[str, int]) -> None:
        """`default` is for models that are not named; None leaves those without a bound."""
        self._default = default
        self._by_model = dict(by_model)
        self._bounds: dict[str, Bound | None] = {}
        self._logged: set[str] = set()

    def of(self, model: str) -> Bound | None:
        """A model's bound, None when it has none; `model` is one that the fleet knows."""
        try:
            return self._bounds[model]
        except KeyError:
            bound = self._bounds[model] = self._new(model)
            return bound

    def limit(self, model: str) -> int | None:
        """Requests that a model may have under way, of any name; None where it has no bound."""
        return self._by_model.get(model, self._default)

    def log_unknown(self, served: Collection[str]) -> None:
        """Log a model that is named but not served, once: it may be misspelt, or come later."""
        for name in self._by_model.keys() - self._logged - set(served):
            self._logged.add(name)
            logger.warning(
                "%s bounds model '%s', which the fleet does not serve now%s",
                _SETTING,
                name,
                nearest(name, served),
            )

    def _new(self, model: str) -> Bound | None:
        limit = self.limit(model)
        if limit is None:
            return None
        return Bound(limit, f"model '{model}' on this gateway", _SETTING)
