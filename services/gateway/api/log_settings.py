"""LogSettings: reads and sets which levels this gateway process logs, in Triton's words."""

import logging
from collections.abc import Mapping
from typing import Final

from services.contracts.errors import InvalidRequestError
from services.pb import open_inference_v2_pb2 as pb

logger = logging.getLogger(__name__)

# From the least level that a switch stands for; each one needs those after it.
_LEVEL_BY_SWITCH: Final = {
    "log_info": logging.INFO,
    "log_warning": logging.WARNING,
    "log_error": logging.ERROR,
}
_VERBOSE: Final = "log_verbose_level"
_FIELD: Final = {**dict.fromkeys(_LEVEL_BY_SWITCH, "bool_param"), _VERBOSE: "uint32_param"}
_SettingValue = pb.LogSettingsRequest.SettingValue


async def log_settings(request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
    """All settings, after those of the request took effect.

    Raises:
        InvalidRequestError: an unknown setting, a wrong type, or levels with a gap.
    """
    root = logging.getLogger()
    if request.settings:
        wanted = _switches(root.level) | _values(request.settings)
        root.setLevel(_level(wanted))
        # At a level that is shown: silencing a log is recorded in it.
        level = max(root.level, logging.WARNING)
        logger.log(level, "a client set the log level to %s", logging.getLevelName(root.level))
    response = pb.LogSettingsResponse()
    for name, value in _switches(root.level).items():
        setattr(response.settings[name], _FIELD[name], value)
    return response


def _switches(level: int) -> dict[str, int]:
    switches = {name: bool(level <= least) for name, least in _LEVEL_BY_SWITCH.items()}
    return {**switches, _VERBOSE: int(level <= logging.DEBUG)}


def _values(settings: Mapping[str, _SettingValue]) -> dict[str, int]:
    values: dict[str, int] = {}
    for name, setting in settings.items():
        wanted = _FIELD.get(name)
        found = setting.WhichOneof("parameter_choice")
        if wanted is None:
            raise InvalidRequestError(
                f"log setting '{name}' cannot be set here; expected one of {', '.join(_FIELD)}"
            )
        if found != wanted:
            raise InvalidRequestError(f"log setting '{name}': expected {wanted}, got {found}")
        values[name] = getattr(setting, wanted)
    return values


def _level(switches: Mapping[str, int]) -> int:
    """The least level that is on; raises InvalidRequestError when one above it is off."""
    found = [bool(switches[_VERBOSE]), *(bool(switches[name]) for name in _LEVEL_BY_SWITCH)]
    if found != sorted(found):
        raise InvalidRequestError(
            "log settings: a level needs those above it: log_verbose_level > 0 needs log_info, "
            f"which needs log_warning, which needs log_error; got {dict(switches)}"
        )
    levels = (logging.DEBUG, *_LEVEL_BY_SWITCH.values(), logging.CRITICAL)
    return levels[found.index(True) if True in found else -1]
