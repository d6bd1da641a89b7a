"""TraceSetting: reads and sets how many requests this gateway process traces, in Triton's words."""

import logging
from collections.abc import Callable
from typing import Final

from services.contracts.errors import InvalidRequestError, UnsupportedFeatureError
from services.pb import open_inference_v2_pb2 as pb

logger = logging.getLogger(__name__)

_LEVEL = "trace_level"
_RATE = "trace_rate"
_MODE = "trace_mode"
# Settings of Triton's trace files, with the values that hold here whatever a client asks for:
# no bound on the number of traces, and no file that is written every so many of them.
_IGNORED: Final = {"trace_count": "-1", "log_frequency": "0"}
READ_ONLY: Final = (_MODE, *_IGNORED)
_ON = "TIMESTAMPS"
_OFF = "OFF"
# What Triton has by default: one request in so many.
_DEFAULT_RATE: Final = 1000
_MAX_RATE: Final = 2**31 - 1


class TraceSettings:
    """The share of requests that begin a trace, as a level and a rate."""

    def __init__(self, share: float, set_share: Callable[[float], None]) -> None:
        """Begin with `share`, which cleared settings go back to; `set_share` sets another one."""
        self._set_share = set_share
        self._first = (share > 0, round(1 / share) if share > 0 else _DEFAULT_RATE)
        self._is_on, self._rate = self._first

    async def answer(self, request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        """All settings, after those of the request took effect.

        `trace_count` and `log_frequency` are ignored with a warning in the log; the answer shows
        the values that hold.

        Raises:
            InvalidRequestError: a setting that cannot be set here, or a wrong value.
            UnsupportedFeatureError: settings for one model alone.
        """
        if request.model_name and request.settings:
            raise UnsupportedFeatureError(
                f"trace settings of model '{request.model_name}' alone are not offered: set them "
                "for all models, with an empty model_name"
            )
        if request.settings:
            self._set({name: tuple(s.value) for name, s in request.settings.items()})
        response = pb.TraceSettingResponse()
        for name, value in self._texts().items():
            response.settings[name].value.append(value)
        return response

    def _set(self, settings: dict[str, tuple[str, ...]]) -> None:
        is_on = self._is_on
        rate = self._rate
        for name, values in settings.items():
            if name == _LEVEL:
                is_on = _is_on(values) if values else self._first[0]
            elif name == _RATE:
                rate = _rate(values) if values else self._first[1]
            elif name in _IGNORED:
                logger.warning(
                    "trace setting '%s' is ignored: traces go to OpenTelemetry, where it stays %s",
                    name,
                    _IGNORED[name],
                )
            else:
                raise InvalidRequestError(
                    f"trace setting '{name}' cannot be set here; expected {_LEVEL} or {_RATE}"
                )
        if settings.keys() <= _IGNORED.keys():
            return
        self._is_on = is_on
        self._rate = rate
        self._set_share(1 / rate if is_on else 0.0)
        logger.warning("a client set traces to %s", self._texts())

    def _texts(self) -> dict[str, str]:
        level = _ON if self._is_on else _OFF
        return {_LEVEL: level, _RATE: str(self._rate), _MODE: "opentelemetry", **_IGNORED}


def _is_on(values: tuple[str, ...]) -> bool:
    if not set(values) <= {_ON, _OFF} or len(set(values)) != 1:
        raise InvalidRequestError(
            f"trace setting '{_LEVEL}': expected {_ON} or {_OFF}, got {list(values)}"
        )
    return values[0] == _ON


def _rate(values: tuple[str, ...]) -> int:
    text = values[0] if len(values) == 1 else ""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(_MAX_RATE))
    if not is_number or not 1 <= int(text) <= _MAX_RATE:
        raise InvalidRequestError(
            f"trace setting '{_RATE}': expected one number from 1, got {list(values)}"
        )
    return int(text)
