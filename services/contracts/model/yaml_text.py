"""YAML text that people write, read so that whatever is wrong with it is one kind of error."""

from collections.abc import Iterable
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


def line_of(text: str, path: Iterable[int | str]) -> int:
    """The line, from 1, of what lies at a path of keys and indices in a text that can be read.

    A part that is not there is passed over: a missing key is on the line of what it is missing in.
    """
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = node.start_mark.line if node else 0
    for part in path:
        line, node = _entries(node).get(str(part), (line, node))
    return line + 1


def _entries(node: yaml.Node | None) -> dict[str, tuple[int, yaml.Node | None]]:
    """What a mapping or list holds: by key or index, its line and itself."""
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): (key.start_mark.line, value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return {str(n): (each.start_mark.line, each) for n, each in enumerate(node.value)}
    return {}
