"""A whole HTTP/2 stack that is not ours at the other end, and objects to what it may not see."""

import random
from typing import TYPE_CHECKING, Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes as Setting

from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host
    from tests.integration.grpc_server.raw_client import RawClient

METHODS = ["Echo", "Blow", "Join", "Chat", "Deaf", "Nothing", "Fail"]


class Talk:
    """One call: what is still to be sent, and what came."""

    def __init__(self, dice: random.Random) -> None:
        self.method = dice.choice(METHODS)
        size = dice.choice([0, 1, 100, 16_379, 70_000])
        self.request = dice.randbytes(size)
        self.left = f.message(self.request)
        self.answer = b""
        self.status = ""
        self.is_over = False

    def note_fields(self, fields: Any) -> None:
        """Headers or trailers came."""
        self.status = dict(fields).get("grpc-status", "")

    def expected(self) -> tuple[str, bytes]:
        """The status, and the answer on the wire."""
        size = len(self.request)
        answers = {
            "Blow": f.message(size.to_bytes(8, "big") + bytes(size)),
            "Deaf": f.message(b"enough"),
            "Nothing": b"",
            "Fail": b"",
        }
        statuses = {"Nothing": "12", "Fail": "2"}
        answer = answers.get(self.method, f.message(self.request))
        return statuses.get(self.method, "0"), answer


class StrictPeer:
    """h2's client around a raw connection; any frame that breaks a rule raises."""

    def __init__(self, client: "RawClient", dice: random.Random) -> None:
        self._client, self._dice = client, dice
        self._http = H2Connection(H2Configuration(header_encoding="utf-8"))
        self.talks: dict[int, Talk] = {}
        self._unacknowledged: dict[int, int] = {}
        # h2 takes each acknowledgement for that of its newest settings: one at a time.
        self._is_settled = False

    async def run(self, talks: list[Talk], window: int) -> None:
        """All calls, a few at a time, in whatever order dice and windows make of it."""
        http, waiting = self._http, list(talks)
        http.initiate_connection()
        while waiting or not all(talk.is_over for talk in self.talks.values()):
            num_open = sum(not talk.is_over for talk in self.talks.values())
            while waiting and num_open < 8:
                self._begin(waiting.pop())
                num_open += 1
            if self._is_settled and self._dice.random() < 0.2:
                size = self._dice.choice([window, window // 2])
                http.update_settings({Setting.INITIAL_WINDOW_SIZE: size})
                self._is_settled = False
            self._send_some()
            self._acknowledge_some()
            # There is always something to be read, if only this one's answer.
            http.ping(bytes(8))
            await self._client.send(http.data_to_send())
            piece = await soon(self._client.receive())
            assert piece, "the server has closed"
            for event in http.receive_data(piece):
                self._note(event)

    def _begin(self, talk: Talk) -> None:
        stream = self._http.get_next_available_stream_id()
        self._http.send_headers(stream, f.request_fields(talk.method))
        self.talks[stream] = talk

    def _send_some(self) -> None:
        http = self._http
        for stream, talk in self.talks.items():
            if talk.is_over or not talk.left:
                continue
            room = min(http.local_flow_control_window(stream), http.max_outbound_frame_size)
            size = min(room, len(talk.left), self._dice.choice([1, 1000, 100_000]))
            if size > 0:
                piece, talk.left = talk.left[:size], talk.left[size:]
                padding = self._dice.choice([None, 0, 3]) if size + 4 <= room else None
                http.send_data(stream, piece, end_stream=not talk.left, pad_length=padding)

    def _acknowledge_some(self) -> None:
        for stream, size in self._unacknowledged.items():
            part = self._dice.randrange(size + 1) if self._dice.random() < 0.5 else size
            self._unacknowledged[stream] = size - part
            if part:
                self._http.acknowledge_received_data(part, stream)
        for stream, talk in self.talks.items():
            # A setting took back what was granted, and h2 itself grants only when bytes come.
            if not talk.is_over and self._http.remote_flow_control_window(stream) <= 0:
                self._http.increment_flow_control_window(50_000, stream)

    def _note(self, event: Event) -> None:
        talk = self.talks.get(getattr(event, "stream_id", 0) or 0)
        if isinstance(event, SettingsAcknowledged):
            self._is_settled = True
        elif isinstance(event, DataReceived) and talk:
            talk.answer += event.data
            had = self._unacknowledged.get(event.stream_id, 0)
            self._unacknowledged[event.stream_id] = had + event.flow_controlled_length
        elif isinstance(event, TrailersReceived) and talk:
            talk.note_fields(event.headers)
        elif isinstance(event, StreamEnded | StreamReset) and talk:
            talk.is_over = True
        elif isinstance(event, ResponseReceived) and talk:
            talk.note_fields(event.headers)


@pytest.mark.parametrize("seed", range(8))
async def test_random_calls(host: "Host", seed: int) -> None:
    await host.serve()
    dice = random.Random(seed)
    client = await host.dial(b"")
    peer = StrictPeer(client, dice)
    talks = [Talk(dice) for _ in range(40)]
    await peer.run(talks, window=dice.choice([5000, 20_000, 65_535, 1 << 20]))
    assert [(talk.status, talk.answer) for talk in talks] == [talk.expected() for talk in talks]
