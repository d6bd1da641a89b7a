"""Settings of a process, read once from the environment; refused with key, value and wish."""

import os
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from services.contracts.errors import InvalidRequestError


class ProcessSettings(BaseModel):
    """Fields whose values are environment variables of their names, in any case.

    pydantic-settings does more, and its import would take a tenth of the time of a short command.

    Attributes:
        env_prefix: what the names of the variables begin with.
    """

    model_config = ConfigDict(extra="forbid", validate_default=True)

    env_prefix: ClassVar[str] = ""

    def __init__(self, **given: Any) -> None:
        """Read the environment; `given` wins over it."""
        named = {name.lower(): text for name, text in os.environ.items()}
        keys = {field: f"{self.env_prefix}{field}".lower() for field in type(self).model_fields}
        super().__init__(**{f: named[key] for f, key in keys.items() if key in named} | given)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_empty_path(cls, value: Any, info: ValidationInfo) -> Any:
        # It would be the present folder, and to take it for none could open what a file guards.
        kind = cls.model_fields[str(info.field_name)].annotation
        if value == "" and Path in (kind, *get_args(kind)):
            raise ValueError("it is empty: name a file or folder, or unset it")
        return value


_SettingsT = TypeVar("_SettingsT", bound=ProcessSettings)


def read_settings(settings_class: type[_SettingsT], **given: object) -> _SettingsT:
    """Settings of a process; `given` wins over the environment.

    Raises:
        InvalidRequestError: values are wrong or missing; with key, value and what was expected of
            each.
    """
    try:
        return settings_class(**given)
    except ValidationError as error:
        faults = (_fault_words(settings_class.env_prefix, fault) for fault in error.errors())
        raise InvalidRequestError("; ".join(faults)) from error


def _fault_words(prefix: str, fault: Any) -> str:
    from services.contracts.model.recipe_faults import value_fault

    if not fault["loc"]:  # settings that do not go together; one of them may be a secret
        return f"settings {prefix}*: {fault['msg'].removeprefix('Value error, ')}"
    key = prefix + "_".join(str(part) for part in fault["loc"]).upper()
    return f"{key}: {value_fault(fault)}"
