"""The number of replicas in a recipe: `auto` or a whole number."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from services.contracts.model.precision_choice import AUTO


def _form(value: object) -> str | None:
    if isinstance(value, int | float):
        return "[number]"
    return "[auto]" if value == AUTO else None


def least_replicas(number: int | str) -> int:
    """Those that are always there."""
    return 1 if number == AUTO else int(number)


# Tags in brackets: pydantic puts them into the path of a fault, where no such key is.
ReplicaNumber = Annotated[
    Annotated[Literal["auto"], Tag("[auto]")] | Annotated[int, Field(ge=1), Tag("[number]")],
    Discriminator(
        _form,
        custom_error_type="neither_auto_nor_number",
        custom_error_message="expected auto or a whole number",
    ),
]
