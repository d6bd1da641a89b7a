"""How tests of the gateway make inputs, and which replica a reply names."""

from collections.abc import Callable
from typing import Any

Inputs = Callable[..., list[Any]]


def who(result: Any) -> str:
    """The replica that answered."""
    return str(result.get_response().parameters["replica"].string_param)
