"""HTTP/2's rules for one connection (RFC 9113), and a call for each of its streams."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import grpc

from services.gateway.http2.block_parts import BlockParts, unpadded
from services.gateway.http2.call import Call
from services.gateway.http2.call_start import MalformedFieldsError
from services.gateway.http2.control_frames import DRAIN_PING, ControlFrames
from services.gateway.http2.flood import FloodGuard
from services.gateway.http2.frames import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    RST_STREAM,
    SETTINGS,
    UINT32,
    WINDOW_UPDATE,
    ConnectionFault,
    ErrorCode,
    broken,
    check_length,
    frame,
    goaway,
    rst_stream,
    window_update,
)
from services.gateway.http2.header_blocks import refusal_block
from services.gateway.http2.header_reader import HeaderReader
from services.gateway.http2.limits import CONNECTION_WINDOW, MAX_WINDOW
from services.gateway.http2.reader import FrameReader
from services.gateway.http2.sender import Sender
from services.gateway.http2.terms import Terms

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

# Larger grants come with an answer's progress; tiny ones make it many tiny frames.
_TINY_GRANT_BYTES: Final = 1024
_MAX_RESET_IDS: Final = 256


class Streams:
    """What the frames of a connection mean; the receiver of its reader, the owner of its calls."""

    def __init__(
        self,
        find: "Callable[[str], Handler | None]",
        terms: Terms,
        sender: Sender,
        peer: str,
        close: Callable[[], None],
    ) -> None:
        """Nothing has come yet.

        Args:
            find: the handler of a path, None for an unknown one.
            terms: the server's.
            sender: of the connection.
            peer: who is at its other end, in gRPC's words.
            close: is called when a connection that drains has no call left.

        Attributes:
            reader: whose frames these are.
        """
        self.sender, self.peer, self.terms = sender, peer, terms
        self.reader = FrameReader(self)
        self._find, self._limits, self._close = find, terms.limits, close
        self._calls: dict[int, Call] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._last_id = 0
        # Trailers of these may be under way, and are no fault (RFC 9113, section 5.1).
        self._reset_ids: deque[int] = deque(maxlen=_MAX_RESET_IDS)
        self._window_in = CONNECTION_WINDOW
        self._headers = HeaderReader(terms.limits.max_metadata_bytes)
        self._guard = FloodGuard()
        self._control = ControlFrames(sender, self._guard, self._calls.values, self._refuse_new)
        self._block: BlockParts | None = None
        self._is_draining = self._is_refusing = False
        self._meanings = {
            HEADERS: self._on_headers,
            CONTINUATION: self._on_continuation,
            WINDOW_UPDATE: self._on_window_update,
            RST_STREAM: self._on_rst_stream,
            **self._control.meanings,
        }

    # ---- what the reader hands on

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """A whole frame, of any kind but data."""
        self._check_turn(kind, stream_id)
        meaning = self._meanings.get(kind)
        if meaning is None:
            self._guard.spend()  # unknown kinds mean nothing
        else:
            meaning(flags, stream_id, payload)

    def data(self, stream_id: int, size: int, *, is_empty: bool, is_last: bool) -> Call | None:
        """A frame of data begins, of so many bytes with its padding; None steps over them."""
        self._check_turn(-1, stream_id)
        self._window_in -= size
        if self._window_in < CONNECTION_WINDOW // 2:
            self._grant_connection()
        call = self._calls.get(stream_id)
        if call is None:
            self._check_known(stream_id)
            return None
        if call.is_half_closed:
            self._reset(call, ErrorCode.STREAM_CLOSED)
            return None
        call.window_in -= size
        if call.window_in < 0:
            self._reset(call, ErrorCode.FLOW_CONTROL_ERROR)
            return None
        if not is_last:
            if is_empty:
                self._guard.spend()
            call.grant_more()
        return call

    # ---- what calls ask for

    def forget(self, call: Call) -> None:
        """Its stream is over."""
        if self._calls.pop(call.stream_id, None) is None:
            return
        self._guard.earn()
        if not call.is_half_closed:
            # It has its answer, and may stop sending.
            self._send_reset(call.stream_id, ErrorCode.NO_ERROR)
        if not self._calls:
            # Nobody else is about to be answered.
            self.sender.flush()
            self._close_if_done()

    def cut(self, call: Call) -> None:
        """Its stream ends, whatever is pending of it."""
        self._reset(call, ErrorCode.CANCEL)

    def earn(self) -> None:
        """One answer of several goes out; clients measure and grant with each."""
        self._guard.earn()

    def stop_reading(self, call: Call) -> None:
        """Nothing more may be read into the memory of its request."""
        self.reader.let_go(call)

    def leave(self, task: asyncio.Task[None]) -> None:
        """A handler that was cancelled counts as a call until it has ended."""
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    # ---- what the connection asks for

    def drain(self) -> None:
        """Let what was sent come and be answered, then close; new calls go elsewhere."""
        self._is_draining = True
        # Two steps: requests that are on their way when the first arrives are still served.
        self.sender.control(goaway(MAX_WINDOW, ErrorCode.NO_ERROR) + frame(PING, 0, 0, DRAIN_PING))
        asyncio.get_running_loop().call_later(self._limits.drain_timeout_s, self._refuse_new)

    def end_all(self, code: grpc.StatusCode, details: str) -> None:
        """End every call with a status; the client learns which ones it may send elsewhere."""
        self._refuse_new()
        for call in list(self._calls.values()):
            call.end(code, details)

    def lose_all(self) -> None:
        """The connection is gone, and every call with it."""
        self._is_refusing = True
        # Forgotten first: nothing is told any more of streams that end.
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.reset()

    @property
    def goodbye_id(self) -> int:
        """The last stream that was looked at."""
        return self._last_id

    def _refuse_new(self) -> None:
        if self._is_draining and not self._is_refusing:
            self._is_refusing = True
            self.sender.control(goaway(self._last_id, ErrorCode.NO_ERROR))
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_refusing and not self._calls:
            self._close()

    # ---- the rules

    def _check_turn(self, kind: int, stream_id: int) -> None:
        """What may come now: settings first, and a header block without anything between."""
        if self._block is not None:
            if kind != CONTINUATION or stream_id != self._block.stream_id:
                raise broken("a header block is interrupted")
        elif not self._control.is_greeted and kind != SETTINGS:
            raise broken("the first frame is not SETTINGS")

    def _check_known(self, stream_id: int) -> None:
        if stream_id > self._last_id or not stream_id % 2:
            raise broken(f"stream {stream_id} is idle")

    def _grant_connection(self) -> None:
        if self._window_in < 0:
            raise ConnectionFault(
                ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window"
            )
        self.sender.control(window_update(0, CONNECTION_WINDOW - self._window_in))
        self._window_in = CONNECTION_WINDOW

    def _reset(self, call: Call, code: ErrorCode) -> None:
        """End a stream at once."""
        del self._calls[call.stream_id]
        call.reset()
        self._send_reset(call.stream_id, code)
        self._close_if_done()

    def _send_reset(self, stream_id: int, code: ErrorCode) -> None:
        self._reset_ids.append(stream_id)
        self.sender.control(rst_stream(stream_id, code))

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id % 2:
            raise broken(f"HEADERS of stream {stream_id}")
        if flags & (PADDED | HAS_PRIORITY):
            payload = unpadded(flags, payload)
        is_last = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._begin(stream_id, payload, is_last=is_last)
        else:
            self._block = BlockParts(stream_id, is_last=is_last, first=payload)

    def _on_continuation(self, flags: int, _: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise broken("CONTINUATION of nothing")
        block.add(payload)
        if flags & END_HEADERS:
            self._block = None
            self._begin(block.stream_id, block.joined(), is_last=block.is_last)

    def _begin(self, stream_id: int, block: bytes, *, is_last: bool) -> None:
        """A call begins, or says all that it will."""
        if stream_id <= self._last_id:
            self._on_trailers(stream_id, block, is_last=is_last)
            return
        self._last_id = stream_id
        try:
            start = self._headers.call_start(block)
        except MalformedFieldsError:
            self._turn_away(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        if self._is_refusing or len(self._calls) + len(self._leaving) >= self._limits.max_streams:
            self._turn_away(stream_id, ErrorCode.REFUSED_STREAM)
            return
        handler = None if start.refusal else self._find(start.path)
        if handler is None:
            refusal = start.refusal or refusal_block(
                grpc.StatusCode.UNIMPLEMENTED, f"this server has no method {start.path}"
            )
            self._answer_at_once(stream_id, refusal, is_last=is_last)
            return
        call = self._calls[stream_id] = Call(self, stream_id, start, handler)
        call.begin()
        if is_last:
            call.data_ended()

    def _on_trailers(self, stream_id: int, block: bytes, *, is_last: bool) -> None:
        is_malformed = False
        try:
            self._headers.trailers(block)
        except MalformedFieldsError:
            is_malformed = True
        call = self._calls.get(stream_id)
        if call is None and stream_id in self._reset_ids:
            self._guard.spend()
            return
        if call is None:
            raise ConnectionFault(
                ErrorCode.STREAM_CLOSED, f"HEADERS of stream {stream_id}, which is over"
            )
        if call.is_half_closed:
            self._reset(call, ErrorCode.STREAM_CLOSED)
        elif is_malformed or not is_last:
            self._reset(call, ErrorCode.PROTOCOL_ERROR)
        else:
            call.data_ended()

    def _turn_away(self, stream_id: int, code: ErrorCode) -> None:
        self._guard.spend()
        self._send_reset(stream_id, code)

    def _answer_at_once(self, stream_id: int, block: bytes, *, is_last: bool) -> None:
        self.sender.refuse(stream_id, block)
        if not is_last:
            self._send_reset(stream_id, ErrorCode.NO_ERROR)

    def _on_window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        check_length(payload, UINT32.size, "WINDOW_UPDATE")
        num_bytes = UINT32.unpack(payload)[0] & MAX_WINDOW
        if num_bytes < _TINY_GRANT_BYTES:
            self._guard.spend()
        if not stream_id:
            if not num_bytes:
                raise broken("a WINDOW_UPDATE of nothing")
            self.sender.grow(num_bytes)
            return
        call = self._calls.get(stream_id)
        if call is None:
            self._check_known(stream_id)
        elif not num_bytes:
            self._reset(call, ErrorCode.PROTOCOL_ERROR)
        elif not self.sender.grow_stream(call, num_bytes):
            self._reset(call, ErrorCode.FLOW_CONTROL_ERROR)

    def _on_rst_stream(self, _: int, stream_id: int, payload: bytes) -> None:
        check_length(payload, UINT32.size, "RST_STREAM")
        self._check_known(stream_id)
        call = self._calls.pop(stream_id, None)
        if call is None or not call.is_given_up:
            self._guard.spend()
        if call is not None:
            call.reset()
            self._close_if_done()
