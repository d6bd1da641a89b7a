"""How fast a large request has to come while others wait for memory."""

from typing import Any

import pytest

from services.grpc_server.headers.request_headers import RequestHeaders
from services.grpc_server.http2.unread_answers import UnreadAnswers
from services.grpc_server.limits import Limits
from services.grpc_server.request.messages import PREFIX, MessageAssembler
from services.grpc_server.request.request_memory import RequestMemory
from services.grpc_server.request.upload import Upload
from services.grpc_server.server_options import OverloadStatus, ServerOptions

SIZE = 5_000_000
# A twentieth, which is what has to come between two checks.
STEP = SIZE // 20


class Receiving:
    """What an upload needs of its call."""

    headers = RequestHeaders("/it")
    num_sent = num_pending = 0

    def count_held(self) -> None:
        """Nothing is counted."""

    def grant_more(self) -> None:
        """Nothing is granted later."""


@pytest.fixture
def memory() -> RequestMemory:
    return RequestMemory(SIZE, 1 << 40)


@pytest.fixture
def assembler() -> MessageAssembler:
    assembler = MessageAssembler(2 * SIZE, "identity")
    assembler.feed(memoryview(PREFIX.pack(0, SIZE)))
    return assembler


@pytest.fixture
def upload(memory: RequestMemory, assembler: MessageAssembler) -> Upload:
    options = ServerOptions(
        limits=Limits(),
        take=None,
        check=None,
        on_unhandled=lambda _: None,
        memory=memory,
        unread=UnreadAnswers(1 << 30),
        overload=OverloadStatus(),
    )
    call: Any = Receiving()
    upload = Upload(call, assembler, options, is_stream=False)
    assert upload.may_grow()
    return upload


@pytest.mark.parametrize(
    ("steps", "num_checks"),
    [
        ([STEP] * 19, None),  # all of it within twenty checks
        ([3 * STEP, 1, 1, 3 * STEP] * 2, None),  # what came before counts
        ([STEP - 1] * 19, 2),
        ([3 * STEP, 0], 3),
        ([1, 1, 1], 2),
    ],
    ids=["on pace", "in gusts", "too slow", "stands still", "trickles"],
)
def test_a_request_has_to_come_in_time(
    upload: Upload,
    memory: RequestMemory,
    assembler: MessageAssembler,
    steps: list[int],
    num_checks: int | None,
) -> None:
    """Or one that sends a little now and then would have others wait for hours."""
    memory.reserve(1, lambda: None)
    for number, step in enumerate([0, *steps], start=1):
        assembler.feed(memoryview(bytes(step)))
        if upload.overload():
            assert number == num_checks
            return
    assert num_checks is None


def test_one_that_stands_still_may_do_so_while_none_waits(
    upload: Upload, memory: RequestMemory
) -> None:
    assert not any(upload.overload() for _ in range(3))
    memory.reserve(1, lambda: None)
    assert [bool(upload.overload()) for _ in range(2)] == [False, True]
