"""Which gRPC status each error of the tree becomes; the only place where the two meet."""

import asyncio
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import grpc

from services.contracts.errors import (
    AnswerTooLargeError,
    BuildError,
    DeadlineExceededError,
    EngineError,
    ExternalServerError,
    InputRefusedError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    NotReadyError,
    OverloadedError,
    ProofError,
    SmeltError,
    StoreError,
    UnauthenticatedError,
    UnsupportedFeatureError,
)
from services.telemetry.logs import REQUEST_ID

logger = logging.getLogger(__name__)

# SmeltError itself is absent on purpose: a new branch of the tree must choose its status,
# and a test fails until it does.
STATUS_BY_ERROR: Final[Mapping[type[SmeltError], grpc.StatusCode]] = {
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    NotAllowedError: grpc.StatusCode.PERMISSION_DENIED,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    NotReadyError: grpc.StatusCode.UNAVAILABLE,
    OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ExternalServerError: grpc.StatusCode.UNAVAILABLE,
    AnswerTooLargeError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineExceededError: grpc.StatusCode.DEADLINE_EXCEEDED,
    UnsupportedFeatureError: grpc.StatusCode.UNIMPLEMENTED,
    BuildError: grpc.StatusCode.INTERNAL,
    ProofError: grpc.StatusCode.INTERNAL,
    EngineError: grpc.StatusCode.INTERNAL,
    InputRefusedError: grpc.StatusCode.INVALID_ARGUMENT,
    StoreError: grpc.StatusCode.INTERNAL,
}
RETRY_AFTER_KEY: Final = "retry-after-ms"
# Details travel in a header, and clients refuse headers above 8 KiB; a character can take
# nine bytes once it is percent-encoded.
MAX_DETAILS_LENGTH: Final = 800


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The status that a client gets instead of an answer.

    Attributes:
        details: one sentence or two; a request id alone when the status is INTERNAL.
        trailing: metadata sent after the status.
    """

    code: grpc.StatusCode
    details: str
    trailing: tuple[tuple[str, str], ...] = ()


class StatusTable:
    """Turns errors into statuses.

    `overload_as_unavailable` answers UNAVAILABLE for overload, as Triton does: retry
    policies written for Triton key on that code.
    """

    def __init__(self, *, overload_as_unavailable: bool = False) -> None:
        self._by_error = dict(STATUS_BY_ERROR)
        if overload_as_unavailable:
            self._by_error[OverloadedError] = grpc.StatusCode.UNAVAILABLE

    def code_of(self, error: BaseException) -> grpc.StatusCode:
        """The status of an error: that of its nearest listed base class, else INTERNAL."""
        if isinstance(error, asyncio.CancelledError):
            return grpc.StatusCode.CANCELLED
        for base in type(error).__mro__:
            if code := self._by_error.get(base):
                return code
        return grpc.StatusCode.INTERNAL

    def refusal_of(self, error: Exception) -> Refusal:
        """The client's status; details that it must not have go to the log."""
        code = self.code_of(error)
        if code is grpc.StatusCode.INTERNAL:
            return _internal_refusal(error)
        return Refusal(code=code, details=_sendable(str(error)), trailing=_hints(error))


def _internal_refusal(error: Exception) -> Refusal:
    # The client's own id, when it gave one, finds both its log lines and ours.
    request_id = REQUEST_ID.get() or uuid.uuid4().hex
    logger.error("request failed: %s", error, exc_info=error, extra={"request_id": request_id})
    details = f"internal error; request id {request_id}"
    return Refusal(code=grpc.StatusCode.INTERNAL, details=details)


def _hints(error: Exception) -> tuple[tuple[str, str], ...]:
    if isinstance(error, OverloadedError):
        return ((RETRY_AFTER_KEY, str(round(error.retry_after_s * 1000))),)
    return ()


def _sendable(text: str) -> str:
    # Half a surrogate, as a token's name may hold: gRPC would send no status, and clients wait.
    text = text.encode(errors="backslashreplace").decode()
    if len(text) <= MAX_DETAILS_LENGTH:
        return text
    return f"{text[: MAX_DETAILS_LENGTH - 3]}..."
