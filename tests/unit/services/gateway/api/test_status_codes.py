"""Every error has a status, and what clients are told of it."""

import asyncio
import logging

import grpc
import pytest

from services.contracts import errors
from services.gateway.api.status_codes import MAX_DETAILS_LENGTH, STATUS_BY_ERROR, StatusTable
from services.telemetry.logs import REQUEST_ID


def _subclasses(base: type[errors.SmeltError]) -> list[type[errors.SmeltError]]:
    direct = base.__subclasses__()
    return direct + [below for child in direct for below in _subclasses(child)]


@pytest.mark.parametrize("error", _subclasses(errors.SmeltError))
def test_every_error_has_a_chosen_status(error: type[errors.SmeltError]) -> None:
    """A new branch of the tree must be entered into the table; INTERNAL by default is no choice."""
    assert any(base in STATUS_BY_ERROR for base in error.__mro__)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequestError("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.UnsupportedGraphError("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.NotFoundError("x"), grpc.StatusCode.NOT_FOUND),
        (errors.NotReadyError("x"), grpc.StatusCode.UNAVAILABLE),
        (errors.OverloadedError("x"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.DeadlineExceededError("x"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (errors.UnsupportedFeatureError("x"), grpc.StatusCode.UNIMPLEMENTED),
        (errors.EngineIncompatibleError("x"), grpc.StatusCode.INTERNAL),
        (errors.InputRefusedError("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.SmeltError("x"), grpc.StatusCode.INTERNAL),
        (ValueError("x"), grpc.StatusCode.INTERNAL),
        (asyncio.CancelledError(), grpc.StatusCode.CANCELLED),
    ],
)
def test_statuses(error: BaseException, code: grpc.StatusCode) -> None:
    assert StatusTable().code_of(error) is code


def test_triton_compatible_overload() -> None:
    table = StatusTable(overload_as_unavailable=True)
    assert table.code_of(errors.OverloadedError("full")) is grpc.StatusCode.UNAVAILABLE
    assert StatusTable().code_of(errors.OverloadedError("full")) is not grpc.StatusCode.UNAVAILABLE


def test_overload_carries_a_retry_hint() -> None:
    refusal = StatusTable().refusal_of(errors.OverloadedError("full", retry_after_s=0.25))
    assert (refusal.details, refusal.trailing) == ("full", (("retry-after-ms", "250"),))


@pytest.mark.parametrize("error", [ValueError("secret path"), errors.EngineError("secret path")])
def test_internal_errors_answer_a_request_id_alone(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        refusal = StatusTable().refusal_of(error)
    (record,) = caplog.records
    assert refusal.code is grpc.StatusCode.INTERNAL
    assert refusal.details == f"internal error; request id {record.request_id}"  # type: ignore[attr-defined]
    assert "secret path" in record.getMessage()
    assert record.exc_info


def test_the_clients_own_id_is_used() -> None:
    token = REQUEST_ID.set("client-7")
    try:
        details = StatusTable().refusal_of(ValueError()).details
    finally:
        REQUEST_ID.reset(token)
    assert details == "internal error; request id client-7"


def test_details_can_be_sent_whatever_is_in_them() -> None:
    refusal = StatusTable().refusal_of(errors.NotAllowedError("'half \ud800' may not do this"))
    assert refusal.details.encode() == b"'half \\ud800' may not do this"


def test_long_details_are_cut() -> None:
    details = StatusTable().refusal_of(errors.NotFoundError("é" * 5000)).details
    assert len(details) == MAX_DETAILS_LENGTH
    assert details.endswith("...")
