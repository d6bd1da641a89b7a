"""What resets one stream, with which code, while the others on its connection go on."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from h2.errors import ErrorCodes as Error
from h2.settings import SettingCodes as Setting

from services.grpc_server.limits import CONNECTION_WINDOW, STREAM_WINDOW, Limits
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

OPEN = f.headers(1, f.request_fields("Gated"))
HALF = f.headers(1, f.request_fields("Gated"), is_last=True)


def without(name: str) -> f.Fields:
    return [field for field in f.request_fields() if field[0] != name]


def with_value(name: str, value: str) -> f.Fields:
    return [(key, value if key == name else old) for key, old in f.request_fields()]


def more(*fields: tuple[str, str]) -> f.Fields:
    return [*f.request_fields(), *fields]


MALFORMED: dict[str, f.Fields] = {
    "no fields": [],
    "no :authority": without(":authority"),
    "newline in :scheme": with_value(":scheme", "ht\ntp"),
    "two :authority": [(":authority", "there"), *f.request_fields()],
    "pseudo last": [*without(":path"), (":path", "/test.Probe/Echo")],
    "pseudo between": [*without(":authority"), (":authority", "here"), ("x", "y")],
    "upper case within": more(("x-nAme", "value")),
    "keep-alive": more(("keep-alive", "timeout=5")),
    "proxy-connection": more(("proxy-connection", "keep-alive")),
    "transfer-encoding": more(("transfer-encoding", "chunked")),
    "upgrade": more(("upgrade", "h2c")),
    "empty name": more(("", "value")),
    "space in name": more(("a name", "value")),
    "colon in name": more(("a:name", "value")),
    "newline in value": more(("name", "one\ntwo")),
    "return in value": more(("name", "one\rtwo")),
    "nothing in value": more(("name", "one\x00two")),
}


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_headers(host: "Host", fields: f.Fields) -> None:
    await host.serve()
    client = await host.dial()
    answer = await client.ask(f.headers(1, fields) + f.body(1, f.message(b"x")))
    assert (answer.reset, answer.heads) == (Error.PROTOCOL_ERROR, [])
    assert await client.goes_on()
    assert len(host.probe.metadata) == 1


async def test_empty_data_behind_the_end(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    answer = await client.ask(HALF + f.data(1, b"", is_last=True))
    assert answer.reset == Error.STREAM_CLOSED
    assert await client.goes_on()


async def test_too_many_streams(host: "Host") -> None:
    await host.serve(Limits(max_streams=2))
    client = await host.dial()
    for stream in (1, 3):
        await client.send(f.call(stream, "Hold", b"%d" % stream))
    refused = await client.ask(f.call(5, payload=b"too many"), stream=5)
    assert (refused.reset, refused.heads) == (Error.REFUSED_STREAM, [])
    assert client.settings[Setting.MAX_CONCURRENT_STREAMS] == 2
    host.probe.gate.set()
    for stream in (1, 3):
        assert (await client.answer(stream)).messages == [b"%d" % stream]
    assert await client.goes_on(7)


@pytest.mark.parametrize("ending", ["answered", "reset", "refused", "failed"])
async def test_streams_that_ended_count_no_more(host: "Host", ending: str) -> None:
    await host.serve(Limits(max_streams=3))
    client = await host.dial()
    calls: dict[str, Callable[[int], bytes]] = {
        "answered": lambda n: f.call(n),
        "reset": lambda n: f.call(n, "Hold"),
        "refused": lambda n: f.headers(n, [("a", "b")]),
        "failed": lambda n: f.call(n, "Fail", b"fault"),
    }
    for stream in range(1, 41, 2):
        await client.send(calls[ending](stream))
        if ending != "reset":
            await client.answer(stream)
            continue
        await soon(host.probe.began.get())
        await client.send(f.rst_stream(stream))
        # gRPC's core ends a call in its own time: not by the next PING.
        assert await soon(host.probe.ended.get()) == "cancelled"
        await client.settled()
    assert await client.goes_on(41)


LATE_DATA = {
    "DATA": f.data(1, b"late"),
    "empty DATA": f.data(1, b""),
    "last DATA": f.data(1, b"late", is_last=True),
}


SENT = f.message(b"xyz")
LENGTHS = {
    "less": (str(len(SENT) + 1), f.data(1, SENT, is_last=True)),
    "more": (str(len(SENT) - 1), f.data(1, SENT, is_last=True)),
    "more in two": (str(len(SENT) - 1), f.data(1, SENT[:4]) + f.data(1, SENT[4:], is_last=True)),
    "less before trailers": ("99", f.data(1, SENT) + f.headers(1, [("a", "b")], is_last=True)),
}


@pytest.mark.parametrize(("length", "sent"), LENGTHS.values(), ids=LENGTHS)
async def test_a_request_is_as_long_as_it_says(host: "Host", length: str, sent: bytes) -> None:
    # RFC 9113, section 8.1.1; cases 8.1.2.6/1 and 2 of h2spec.
    await host.serve()
    client = await host.dial()
    fields = more(("content-length", length))
    assert (await client.ask(f.headers(1, fields) + sent)).reset == Error.PROTOCOL_ERROR
    right = more(("content-length", str(len(SENT))))
    answer = await client.ask(f.headers(3, right), f.data(3, SENT, is_last=True), stream=3)
    assert answer.messages == [b"xyz"]
    empty = await client.ask(f.headers(5, fields, is_last=True), stream=5)
    assert empty.reset == Error.PROTOCOL_ERROR
    assert await client.goes_on(7)


async def test_a_connection_says_once_which_compressions_it_takes(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    first, second = await client.ask(f.call(1)), await client.ask(f.call(3), stream=3)
    assert first.head["grpc-accept-encoding"] == "identity,deflate,gzip"
    assert "grpc-accept-encoding" not in second.head
    assert (first.status, second.status) == (0, 0)


async def with_closed_stream(host: "Host", *, is_reset: bool) -> Any:
    """A client whose stream 1 was reset by it, or answered."""
    await host.serve()
    client = await host.dial()
    if is_reset:
        await client.send(OPEN + f.rst_stream(1))
    else:
        await client.ask(f.call(1))
    return client


@pytest.mark.parametrize("late", LATE_DATA.values(), ids=LATE_DATA)
@pytest.mark.parametrize("is_reset", [False, True], ids=["ended", "reset"])
async def test_data_of_a_stream_that_its_client_has_closed(
    host: "Host", late: bytes, is_reset: bool
) -> None:
    # RFC 9113, section 5.1; cases 5.1/8 and 5.1/11 of h2spec.
    client = await with_closed_stream(host, is_reset=is_reset)
    await client.send(late)
    await client.until(lambda: client.seen(1).reset == Error.STREAM_CLOSED)
    assert await client.goes_on()
    assert not client.goaways


@pytest.mark.parametrize("late", LATE_DATA.values(), ids=LATE_DATA)
async def test_data_of_a_stream_that_the_server_has_closed(host: "Host", late: bytes) -> None:
    # It may have been sent before the client knew.
    await host.serve()
    client = await host.dial()
    assert (await client.ask(OPEN + f.window_update(1, 0))).reset == Error.PROTOCOL_ERROR
    await client.send(late)
    assert await client.goes_on()
    assert client.seen(1).reset == Error.PROTOCOL_ERROR


LATE = {
    "WINDOW_UPDATE": f.window_update(1, 10),
    "WINDOW_UPDATE of too much": f.window_update(1, f.MAX_WINDOW),
    "RST_STREAM": f.rst_stream(1),
    "PRIORITY": f.frame(f.PRIORITY, 0, 1, bytes(5)),
}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
@pytest.mark.parametrize("is_reset", [False, True], ids=["answered", "reset"])
async def test_frames_of_a_closed_stream_are_ignored(
    host: "Host", late: bytes, is_reset: bool
) -> None:
    # They may have been sent before the client knew.
    client = await with_closed_stream(host, is_reset=is_reset)
    await client.send(late)
    assert await client.goes_on()
    assert not client.goaways


async def test_bytes_for_a_closed_stream_are_given_back(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    await client.settled()  # so that frames may be that large
    await client.send(OPEN + f.rst_stream(1))
    piece = f.data(1, bytes(1 << 20))
    for _ in range(2 * CONNECTION_WINDOW >> 20):
        await client.send(piece)
        await client.settled()
    assert await client.goes_on()
    assert client.seen(0).credit > CONNECTION_WINDOW


# As a handler that reads nothing gets them, each message on its own.
PIECE = f.message(bytes(16384 - 5))
NUM_PIECES = STREAM_WINDOW // len(PIECE)


async def test_more_than_the_windows_of_a_stream(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    await client.send(OPEN, f.data(1, PIECE) * NUM_PIECES)
    await client.settled()
    assert client.seen(1).reset is None
    assert (await client.ask(f.data(1, b"x"))).reset == Error.FLOW_CONTROL_ERROR
    assert await soon(host.probe.ended.get()) == "cancelled"
    assert await client.goes_on()


async def test_padding_counts_for_the_window(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    await client.send(OPEN, f.data(1, PIECE) * (NUM_PIECES - 1), f.data(1, PIECE[:-250]))
    await client.settled()
    assert client.seen(1).reset is None
    padded = f.frame(f.DATA, f.PADDED, 1, bytes([250]) + bytes(250))
    assert (await client.ask(padded)).reset == Error.FLOW_CONTROL_ERROR
