"""Reads a process's settings once, from the environment; refused with key, value and wish."""

from typing import TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from services.contracts.errors import InvalidRequestError
from services.contracts.model.recipe_faults import value_fault

_SettingsT = TypeVar("_SettingsT", bound=BaseSettings)


def read_settings(settings_class: type[_SettingsT], **given: object) -> _SettingsT:
    """Settings of a process; `given` wins over the environment.

    Raises:
        InvalidRequestError: a value is wrong or missing; with key, value and what was expected.
    """
    try:
        return settings_class(**given)  # type: ignore[arg-type] # its fields, by name
    except ValidationError as error:
        fault = error.errors()[0]
        prefix = settings_class.model_config["env_prefix"]
        if not fault["loc"]:  # settings that do not go together; one of them may be a secret
            raise InvalidRequestError(
                f"settings {prefix}*: {fault['msg'].removeprefix('Value error, ')}"
            ) from error
        key = prefix + "_".join(str(part) for part in fault["loc"]).upper()
        raise InvalidRequestError(f"{key}: {value_fault(fault)}") from error
