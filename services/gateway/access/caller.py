"""The caller of a request, as its token names it, and what that caller may do."""

from contextvars import ContextVar
from dataclasses import dataclass

from services.contracts.errors import NotAllowedError
from services.gateway.access.access_file import Grant
from services.gateway.access.verbs import Verb

# Of the request being served, for the access log; "" where no token is required.
CALLER_NAME: ContextVar[str] = ContextVar("smelt_caller", default="")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A token that was accepted.

    Attributes:
        expires_at_s: POSIX seconds after which it is not accepted any more.
    """

    name: str
    grants: tuple[Grant, ...]
    expires_at_s: float = float("inf")

    def may(self, verb: Verb | None, model: str) -> bool:
        """Whether it is allowed; without a verb, any grant that covers the model is enough."""
        return any(
            grant.covers(model) and (verb is None or verb in grant.verbs) for grant in self.grants
        )

    def require(self, verb: Verb | None, model: str) -> None:
        """Raise NotAllowedError, with caller, verb and model, for what is not allowed."""
        if self.may(verb, model):
            return
        what = f"model '{model}'" if model else "all models at once"
        wanted = f"'{verb}'" if verb else "any verb"
        raise NotAllowedError(
            f"'{self.name}' may not do this: it needs {wanted} on {what}; add a grant to the "
            "gateway's access file"
        )
