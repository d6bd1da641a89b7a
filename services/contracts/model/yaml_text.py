"""YAML text that people write, read so that whatever is wrong with it is one kind of error."""

from typing import Any

import yaml


def value_from_yaml(text: str) -> Any:
    """What a text says; None for one without a word in it.

    Raises:
        yaml.YAMLError: it is no YAML, or a value in it cannot be had: a date that is none, a
            number of thousands of digits, thousands of brackets. The library lets those pass as
            whatever Python raises on the way.
    """
    try:
        return yaml.safe_load(text)
    except ValueError as error:
        raise yaml.YAMLError(str(error)) from error
    except RecursionError as error:
        raise yaml.YAMLError("lists and mappings lie too deep within each other") from error
