"""Precisions in a recipe: `auto` or a list, and how close answers must be in a word."""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Discriminator, Tag

from services.contracts.hardware.kinds import Precision

AUTO: Final = "auto"


class Accuracy(StrEnum):
    """How close answers must be to the original's.

    `exact`: only fp32 engines are built. `close`: each precision keeps its own distance.
    `ranking`: `close`, and engines keep the order that `ranking` or `tasks` of the recipe compare;
    samples that come with the model calibrate int8, where `calibration` names no others.
    The distances are those of `tolerances`, or by default those that `smelt models add` prints.
    """

    EXACT = "exact"
    CLOSE = "close"
    RANKING = "ranking"


def _form(value: object) -> str | None:
    if isinstance(value, list | tuple):
        return "[list]"
    return "[auto]" if value == AUTO else None


# Tags in brackets: pydantic puts them into the path of a fault, where no such key is.
PrecisionChoice = Annotated[
    Annotated[Literal["auto"], Tag("[auto]")] | Annotated[tuple[Precision, ...], Tag("[list]")],
    Discriminator(
        _form,
        custom_error_type="neither_auto_nor_list",
        custom_error_message="expected auto or a list, such as [fp32, bf16]",
    ),
]
