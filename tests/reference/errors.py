"""The tree of errors, and the gRPC status that each becomes."""

from services.cli.recipes.docstrings import description
from services.contracts import errors
from services.contracts.errors import SmeltError
from services.gateway.api.status_codes import RETRY_AFTER_KEY, STATUS_BY_ERROR
from tests.reference.text import page, table

INTRODUCTION = (
    "Every error that Smelt raises on purpose. Messages say what failed, where, what was found and "
    "wanted, and the command or change that mends it. Commands print the message and end with exit "
    "code 1; a gateway answers with the status. INTERNAL carries a request id only: the message is "
    f"in the gateway's log under that id. An overload carries `{RETRY_AFTER_KEY}`; "
    "`SMELT_GATEWAY_OVERLOAD_AS_UNAVAILABLE=true` answers it UNAVAILABLE, as Triton does."
)


def errors_page() -> str:
    tree = table(("error", "gRPC status", "raised when"), _rows(SmeltError, 0))
    return page("Errors", INTRODUCTION, tree)


def _rows(error: type[SmeltError], depth: int) -> list[tuple[str, str, str]]:
    status = next(
        (STATUS_BY_ERROR[base] for base in error.__mro__ if base in STATUS_BY_ERROR), None
    )
    name = "&nbsp;" * 4 * depth + f"`{error.__name__}`"
    rows = [(name, status.name if status else "", description(error))]
    # Tests may have made some of their own.
    known = [e for e in vars(errors).values() if isinstance(e, type) and error in e.__bases__]
    return rows + [row for child in known for row in _rows(child, depth + 1)]
