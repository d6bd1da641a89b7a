"""Flow control, both ways: windows that are tiny, shared, changed and never opened."""

import gc
import struct
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from h2.settings import SettingCodes as Setting
from hyperframe.frame import DataFrame, SettingsFrame

from services.grpc_server.limits import STREAM_WINDOW
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host
    from tests.integration.grpc_server.raw_client import RawClient

INITIAL, FRAME = Setting.INITIAL_WINDOW_SIZE, Setting.MAX_FRAME_SIZE


def window_setting(size: int) -> bytes:
    """One entry of a SETTINGS frame."""
    return struct.pack("!HI", INITIAL, size)


def size_call(stream: int, size: int) -> bytes:
    """Asks for an answer of so many bytes on the wire, prefix included."""
    return f.call(stream, "Size", b"%d" % (size - 5))


async def came(client: "RawClient", stream: int, size: int) -> None:
    """So much of an answer."""
    await client.until(lambda: len(client.seen(stream).data) == size)


async def granted(client: "RawClient", stream: int, size: int) -> None:
    """So much may be sent of a request."""
    await client.until(lambda: STREAM_WINDOW + client.seen(stream).credit >= size)


async def test_an_answer_trickles_byte_by_byte(host: "Host") -> None:
    await host.serve()
    client = await host.dial(f.greeting({INITIAL: 0}))
    await client.send(size_call(1, 60))
    answer = client.seen(1)
    for size in range(60):
        await came(client, 1, size)
        await client.settled()
        assert (len(answer.data), answer.is_ended) == (size, False)
        await client.send(f.window_update(1, 1))
    assert len((await client.answer(1)).messages[0]) == 55
    assert answer.status == 0


async def test_trailers_need_no_window(host: "Host") -> None:
    await host.serve()
    client = await host.dial(f.greeting({INITIAL: 100}))
    answer = await client.ask(size_call(1, 100))
    assert (len(answer.data), answer.status) == (100, 0)
    refusal = await client.ask(f.settings({INITIAL: 0}) + f.call(3, "Fail"), stream=3)
    assert refusal.status == 2


async def test_settings_change_the_windows_of_answers_under_way(host: "Host") -> None:
    await host.serve()
    client = await host.dial(f.greeting({INITIAL: 1000}))
    steps = [
        (size_call(1, 5000), 1000),
        (f.settings({INITIAL: 1500}), 1500),
        (f.settings({INITIAL: 0}), 1500),  # the window is -1500 now
        (f.window_update(1, 1499), 1500),
        (f.window_update(1, 1), 1500),
        (f.window_update(1, 1), 1501),
        # Of several in one frame the last one counts: nothing happens between them.
        (f.frame(f.SETTINGS, payload=b"".join(map(window_setting, (99, 0, 50)))), 1551),
        (f.window_update(1, 49), 1600),
        (f.window_update(1, 3), 1603),
    ]
    for sent, expected in steps:
        await client.send(sent)
        await came(client, 1, expected)
        await client.settled()
        assert len(client.seen(1).data) == expected
    answer = await client.ask(f.settings({INITIAL: 10_000}))
    assert (len(answer.data), answer.status) == (5000, 0)


async def test_settings_are_acknowledged_before_they_are_used(host: "Host") -> None:
    # Before it hears that, a strict client counts by the old ones.
    await host.serve()
    client = await host.dial(f.greeting({INITIAL: 10}))
    await client.send(size_call(1, 5000))
    await came(client, 1, 10)
    num_frames = len(client.frames)
    await client.ask(f.settings({INITIAL: 10_000}))
    kinds = [type(each) for each in client.frames[num_frames:]]
    assert kinds.index(SettingsFrame) < kinds.index(DataFrame)


async def test_settings_leave_the_window_of_the_connection(host: "Host") -> None:
    await host.serve()
    client = await host.dial(f.greeting({INITIAL: f.MAX_WINDOW}))
    await client.send(size_call(1, 100_000))
    await came(client, 1, f.FIRST_WINDOW)
    await client.settled()
    assert len(client.seen(1).data) == f.FIRST_WINDOW
    assert len((await client.ask(f.window_update(0, 100_000))).data) == 100_000


async def test_answers_share_the_window_of_the_connection(host: "Host") -> None:
    await host.serve()
    client = await host.dial(f.greeting({INITIAL: f.MAX_WINDOW}))
    streams, size = (1, 3, 5), 200_000

    async def came_of_all(expected: int) -> list[int]:
        def sizes() -> list[int]:
            return [len(client.seen(stream).data) for stream in streams]

        await client.until(lambda: sum(sizes()) == expected)
        await client.settled()
        assert sum(sizes()) == expected
        return sizes()

    await client.send(*[size_call(stream, size) for stream in streams])
    had = f.FIRST_WINDOW
    before = await came_of_all(had)
    for _ in range(12):
        await client.send(f.window_update(0, 20_000))
        had += 20_000
        await came_of_all(had)
    # They took turns: each has had a good part of what was granted since.
    after = [len(client.seen(stream).data) for stream in streams]
    assert min(new - old for new, old in zip(after, before, strict=True)) > 240_000 // 5
    await client.send(f.window_update(0, f.MAX_WINDOW // 2))
    for stream in streams:
        assert len((await client.answer(stream)).data) == size


async def test_a_stream_without_window_holds_up_no_other(host: "Host") -> None:
    await host.serve()
    client = await host.dial(f.greeting({INITIAL: 10}))
    await client.send(size_call(1, 100_000))
    for stream in range(3, 43, 2):
        small = await client.ask(f.call(stream, payload=b"small"), stream=stream)
        assert small.messages == [b"small"]
    assert len(client.seen(1).data) == 10


@pytest.mark.parametrize("size", [16_384, 16_385, 50_000, 2**24 - 1])
async def test_no_frame_is_larger_than_the_client_takes(host: "Host", size: int) -> None:
    await host.serve()
    client = await host.dial(f.wide() + f.settings({FRAME: size}))
    answer = await client.ask(size_call(1, 300_000))
    assert max(answer.sizes) <= size
    assert len(answer.data) == 300_000
    again = await client.ask(f.settings({FRAME: 16_384}) + size_call(3, 300_000), stream=3)
    assert max(again.sizes) <= 16_384


@pytest.mark.parametrize("order", [(INITIAL, FRAME), (FRAME, INITIAL)])
async def test_settings_of_one_frame_count_together(host: "Host", order: tuple[int, int]) -> None:
    # A larger window lets an answer go on, in frames as small as the same settings say.
    await host.serve()
    client = await host.dial(f.wide(10) + f.settings({FRAME: 100_000}))
    await client.send(size_call(1, 300_000))
    await came(client, 1, 10)
    values: dict[int, int] = {INITIAL: f.MAX_WINDOW, FRAME: 16_384}
    answer = await client.ask(f.settings({key: values[key] for key in order}))
    assert max(answer.sizes) <= 16_384


async def test_a_large_answer_that_is_read_late(host: "Host") -> None:
    # Frames as large as can be, and a socket that is full of them while small ones are due.
    await host.serve()
    client = await host.dial(f.wide() + f.settings({FRAME: 2**24 - 1}))
    other = await host.dial()
    await client.send(size_call(1, 30_000_000))
    for stream in range(1, 41, 2):
        await client.send(f.frame(f.PING, payload=bytes(8)), f.settings({}))
        assert await other.goes_on(stream)
    answer = await client.answer(1)
    assert (len(answer.data), answer.status) == (30_000_000, 0)


async def test_a_reset_in_the_middle_of_an_answer(host: "Host") -> None:
    await host.serve()
    client = await host.dial(f.greeting({INITIAL: 1000}))
    for stream in range(1, 121, 2):
        await client.send(size_call(stream, 1 << 20))
        await came(client, stream, 1000)
        await client.send(f.rst_stream(stream), f.window_update(stream, 1 << 20))
    # Of the connection's window only what was sent is gone.
    await client.send(f.settings({INITIAL: 1 << 20}), size_call(121, 1 << 20))
    await came(client, 121, f.FIRST_WINDOW - 60_000)
    await client.settled()
    assert len(client.seen(121).data) == f.FIRST_WINDOW - 60_000
    assert len((await client.ask(f.window_update(0, 1 << 20), stream=121)).data) == 1 << 20


async def test_a_reset_ends_a_handler_that_waits_for_a_window(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    await client.send(f.call(1, "Numbers", b"1000 100000"))
    await came(client, 1, f.FIRST_WINDOW)
    await client.send(f.rst_stream(1))
    assert await soon(host.probe.ended.get()) == "cancelled"
    assert (await client.ask(f.window_update(0, 10_000) + f.call(3), stream=3)).status == 0


async def test_a_deadline_ends_a_handler_that_waits_for_a_window(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    answer = await client.ask(f.call(1, "Numbers", b"1000 100000", grpc_timeout="50m"))
    assert await soon(host.probe.ended.get()) == "cancelled"
    assert answer.status == 4


async def upload(client: "RawClient", stream: int, sent: bytes, begin: int = 0) -> int:
    """Sends within the windows that the server grants; how much of the stream is sent then."""
    end = begin + len(sent)
    for at in range(begin, end, 16_384):
        last = min(at + 16_384, end)
        await granted(client, stream, last)
        await client.send(f.data(stream, sent[at - begin : last - begin]))
    return end


async def test_what_was_answered_before_an_abort_comes_first(host: "Host") -> None:
    # As with gRPC's own server: the status stands behind the messages, however slow they are.
    await host.serve()
    client = await host.dial(f.greeting({INITIAL: 100}))
    await client.send(f.call(1, "Halfway", b"1000"))
    await came(client, 1, 100)
    await client.settled()
    assert len(client.seen(1).data) == 100
    answer = await client.ask(f.window_update(1, 10_000))
    assert answer.messages == [bytes([letter]) * 1000 for letter in range(3)]
    assert answer.status == 9


async def test_a_message_larger_than_the_window_comes_whole_though_nobody_reads(
    host: "Host",
) -> None:
    await host.serve()
    client = await host.dial()
    await client.send(f.headers(1, f.request_fields("Gated")))
    size = 3 * STREAM_WINDOW
    first = f.message(bytes(size))
    at = await upload(client, 1, first[:-1])
    # Once whole it counts as unread: from then on nothing more is granted.
    await client.settled()
    credit = client.seen(1).credit
    at = await upload(client, 1, first[-1:], at)
    await client.settled()
    assert client.seen(1).credit == credit
    host.probe.gate.set()
    await upload(client, 1, f.message(bytes(100_000)) * 100, at)
    answer = await client.ask(f.data(1, b"", is_last=True))
    assert answer.messages == [b"%d" % size] + [b"100000"] * 100


async def test_memory_is_bounded_when_nobody_reads(host: "Host") -> None:
    await host.serve()
    client = await host.dial(f.wide(1 << 16))
    tracemalloc.start()
    try:
        for stream in range(1, 41, 2):
            await client.send(f.call(stream, "Numbers", b"64 1000000"))
        await client.settled()
        gc.collect()
        held_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # One answer of each of 20 streams may be under way, and a copy; not all 64.
    assert held_bytes < 3 * 20 * 1_000_000


async def test_a_socket_that_is_not_read_holds_up_handlers(host: "Host") -> None:
    # All windows are wide open: only the socket is full.
    await host.serve()
    deaf, other = await host.dial(f.wide()), await host.dial()
    await deaf.send(f.call(1, "Numbers", b"400 1000000"))
    before, stream = -1, 1
    while before != host.probe.yielded:
        before = host.probe.yielded
        for _ in range(20):
            assert (await other.ask(f.call(stream), stream=stream)).status == 0
            stream += 2
    assert host.probe.yielded < 100
    deaf.close()
    assert await soon(host.probe.ended.get()) == "cancelled"
