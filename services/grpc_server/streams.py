"""HTTP/2's rules for one connection (RFC 9113), and a call for each of its streams."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import grpc

from services.grpc_server.call import Call
from services.grpc_server.closed_streams import ResetStreams
from services.grpc_server.control_frames import DRAIN_PING, ControlFrames
from services.grpc_server.flood import FloodGuard
from services.grpc_server.frame_writer import FrameWriter
from services.grpc_server.frames import (
    CONTINUATION,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    UINT32,
    WINDOW_UPDATE,
    ErrorCode,
    Http2ConnectionError,
    broken,
    check_length,
    frame,
    goaway,
    rst_stream,
    window_update,
)
from services.grpc_server.header_decoder import HeaderDecoder
from services.grpc_server.header_fragments import HeaderFrames
from services.grpc_server.limits import CONNECTION_WINDOW, MAX_WINDOW, STREAM_WINDOW
from services.grpc_server.reader import FrameReader
from services.grpc_server.request_headers import MalformedFieldsError
from services.grpc_server.response_headers import trailers_only_block
from services.grpc_server.server_options import ServerOptions

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

# Of streams that were reset here, so many are remembered for each that may be open.
_RESETS_PER_STREAM: Final = 2
# HEADERS, and the frame that brings a small request.
_FRAMES_OF_REQUEST: Final = 2


class Streams:
    """What the frames of a connection mean; the receiver of its reader, the owner of its calls."""

    def __init__(
        self,
        find: "Callable[[str], Handler | None]",
        options: ServerOptions,
        writer: FrameWriter,
        peer: str,
        close: Callable[[], None],
    ) -> None:
        """Nothing has come yet.

        Args:
            find: the handler of a path, None for an unknown one.
            options: the server's.
            writer: of the connection.
            peer: who is at its other end, in gRPC's words.
            close: is called when a connection that drains has no call left.

        Attributes:
            reader, control: whose frames these are; what those of the connection mean.
        """
        self.writer, self.peer, self.options = writer, peer, options
        self._guard = FloodGuard(options.limits.free_frames, options.limits.free_frames_per_second)
        self.reader = FrameReader(self, options.read_buffer, self._guard)
        self._find, self._limits, self._close = find, options.limits, close
        self._calls: dict[int, Call] = {}
        self._cancelled_handlers: set[asyncio.Task[None]] = set()
        self._last_id = 0
        # What comes of these may have been sent before their client knew.
        self._resets = ResetStreams(_RESETS_PER_STREAM * options.limits.max_streams)
        self._num_sent = 0
        self._window_in = CONNECTION_WINDOW
        self._headers = HeaderDecoder(options.limits.max_metadata_bytes, self._guard)
        self.control = ControlFrames(writer, self._guard, self._calls.values, self._refuse_new)
        self._blocks = HeaderFrames(self._begin)
        self._is_draining = self._is_refusing = False
        self._frame_handlers = {
            HEADERS: self._blocks.on_headers,
            CONTINUATION: self._blocks.on_continuation,
            WINDOW_UPDATE: self._on_window_update,
            RST_STREAM: self._on_rst_stream,
            **self.control.handlers,
        }

    # ---- what the reader hands on

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """A whole frame, of any kind but data."""
        self._check_turn(kind, stream_id)
        handle = self._frame_handlers.get(kind)
        if handle is not None:  # unknown kinds mean nothing
            handle(flags, stream_id, payload)

    def data(self, stream_id: int, size: int, *, num_bytes: int, is_last: bool) -> Call | None:
        """A frame of data begins; see `Receiver`."""
        self._check_turn(-1, stream_id)
        self._window_in -= size
        if self._window_in < CONNECTION_WINDOW // 2:
            self._grant_connection()
        call = self._calls.get(stream_id)
        if call is None:
            self._on_late_data(stream_id, size, num_bytes)
            return None
        if call.is_half_closed:
            self._stream_error(call, ErrorCode.STREAM_CLOSED)
            return None
        call.window_in -= size
        if call.window_in < 0:
            self._stream_error(call, ErrorCode.FLOW_CONTROL_ERROR)
            return None
        if call.num_missing >= 0 and not call.has_length(num_bytes, is_last=is_last):
            self._stream_error(call, ErrorCode.PROTOCOL_ERROR)
            return None
        self._guard.refund_data(num_bytes)
        call.is_ending = is_last
        if not is_last:
            call.grant_more()
        return call

    def _on_late_data(self, stream_id: int, size: int, num_bytes: int) -> None:
        """DATA of a stream that is closed."""
        self._check_known(stream_id)
        if stream_id not in self._resets:
            # Its client has ended it itself.
            self._guard.charge()
            self._send_reset(stream_id, ErrorCode.STREAM_CLOSED)
        elif self._resets.take(stream_id, size):
            self._guard.refund_data(num_bytes)

    def stream_closed(self, call: Call) -> None:
        """Its stream is over."""
        if self._calls.pop(call.stream_id, None) is None:
            return
        if call.is_handled:
            self._guard.pay_answer()
        else:
            self._guard.refund(_FRAMES_OF_REQUEST)
        if not call.is_half_closed:
            # It has its answer, and may stop sending.
            self._send_reset(call.stream_id, ErrorCode.NO_ERROR, call.window_in)
        if not self._calls:
            # Nobody else is about to be answered.
            self.writer.flush()
            self._close_if_done()

    def reset_stream(self, call: Call) -> None:
        """Its stream ends, whatever is pending of it."""
        self._reset(call, ErrorCode.CANCEL)

    def pay_answer(self) -> None:
        """One answer of several goes out; clients measure and grant with each."""
        self._guard.pay_answer()

    def stop_reading(self, call: Call) -> None:
        """Nothing more may be read into the memory of its request."""
        self.reader.stop_filling(call)

    def handler_cancelled(self, task: asyncio.Task[None]) -> None:
        """A handler that was cancelled counts as a call until it has ended."""
        self._cancelled_handlers.add(task)
        task.add_done_callback(self._cancelled_handlers.discard)

    # ---- what the connection asks for

    def drain(self) -> None:
        """Let what was sent come and be answered, then close; new calls go elsewhere."""
        self._is_draining = True
        # Two steps: requests that are on their way when the first arrives are still served.
        self.writer.control(goaway(MAX_WINDOW, ErrorCode.NO_ERROR) + frame(PING, 0, 0, DRAIN_PING))
        asyncio.get_running_loop().call_later(self._limits.drain_timeout_s, self._refuse_new)

    def end_all(self, code: grpc.StatusCode, details: str) -> None:
        """End every call with a status; the client learns which ones it may send elsewhere."""
        self._refuse_new()
        for call in list(self._calls.values()):
            call.end(code, details)

    def connection_lost(self) -> None:
        """The connection is gone, and every call with it."""
        self._is_refusing = True
        # Forgotten first: nothing is told any more of streams that end.
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.reset()

    def check_progress(self) -> None:
        """End requests that do not come."""
        for call in tuple(self._calls.values()):
            call.check_progress()

    @property
    def num_calls(self) -> int:
        """That are open."""
        return len(self._calls)

    @property
    def last_stream_id(self) -> int:
        """The last stream that was looked at."""
        return self._last_id

    def _refuse_new(self) -> None:
        if self._is_draining and not self._is_refusing:
            self._is_refusing = True
            self.writer.control(goaway(self._last_id, ErrorCode.NO_ERROR))
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_refusing and not self._calls:
            self._close()

    # ---- the rules

    def _check_turn(self, kind: int, stream_id: int) -> None:
        """What may come now: settings first, and a header block without anything between."""
        if self._blocks.stream_id:
            if kind != CONTINUATION or stream_id != self._blocks.stream_id:
                raise broken("a header block is interrupted")
        elif not self.control.has_settings and kind != SETTINGS:
            raise broken("the first frame is not SETTINGS")

    def _check_known(self, stream_id: int) -> None:
        if stream_id > self._last_id or not stream_id % 2:
            raise broken(f"stream {stream_id} is idle")

    def _grant_connection(self) -> None:
        if self._window_in < 0:
            raise Http2ConnectionError(
                ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window"
            )
        self.writer.control(window_update(0, CONNECTION_WINDOW - self._window_in))
        self._window_in = CONNECTION_WINDOW

    def _stream_error(self, call: Call, code: ErrorCode) -> None:
        """End a stream whose client broke a rule, at its cost."""
        self._guard.charge()
        self._reset(call, code)

    def _reset(self, call: Call, code: ErrorCode) -> None:
        """End a stream at once."""
        del self._calls[call.stream_id]
        call.reset()
        self._send_reset(call.stream_id, code, call.window_in)
        self._close_if_done()

    def _send_reset(self, stream_id: int, code: ErrorCode, window_in: int = 0) -> None:
        """Send RST_STREAM; its client may have sent so many bytes before it comes."""
        self._resets.add(stream_id, window_in)
        self.writer.control(rst_stream(stream_id, code))

    def _begin(self, stream_id: int, block: bytes, is_last: bool) -> None:
        """A call begins, or says all that it will."""
        if stream_id <= self._last_id:
            self._on_trailers(stream_id, block, is_last=is_last)
            return
        self._last_id = stream_id
        try:
            headers = self._headers.request_headers(block)
        except MalformedFieldsError:
            self._refuse_stream(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        if (
            self._is_refusing
            or len(self._calls) + len(self._cancelled_handlers) >= self._limits.max_streams
        ):
            self._refuse_stream(stream_id, ErrorCode.REFUSED_STREAM)
            return
        handler = None if headers.refusal else self._find(headers.path)
        if handler is None:
            refusal = headers.refusal or trailers_only_block(
                grpc.StatusCode.UNIMPLEMENTED, f"this server has no method {headers.path}"
            )
            self._send_trailers_only(stream_id, refusal, is_last=is_last)
            return
        call = Call(self, stream_id, headers, handler)
        if is_last and not call.has_length(0, is_last=True):
            self._refuse_stream(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        self._calls[stream_id] = call
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
        if call is None and stream_id in self._resets:
            return
        if call is None:
            raise Http2ConnectionError(
                ErrorCode.STREAM_CLOSED, f"HEADERS of stream {stream_id}, which is over"
            )
        if call.is_half_closed:
            self._stream_error(call, ErrorCode.STREAM_CLOSED)
        elif is_malformed or not is_last or not call.has_length(0, is_last=True):
            self._stream_error(call, ErrorCode.PROTOCOL_ERROR)
        else:
            call.data_ended()

    def _refuse_stream(self, stream_id: int, code: ErrorCode) -> None:
        self._guard.charge()
        self._send_reset(stream_id, code, STREAM_WINDOW)

    def _send_trailers_only(self, stream_id: int, block: bytes, *, is_last: bool) -> None:
        self.writer.send_trailers(stream_id, block)
        if not is_last:
            self._send_reset(stream_id, ErrorCode.NO_ERROR, STREAM_WINDOW)

    def _on_window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        check_length(payload, UINT32.size, "WINDOW_UPDATE")
        num_bytes = UINT32.unpack(payload)[0] & MAX_WINDOW
        # What was sent is what windows are granted for.
        sent, self._num_sent = self._num_sent, self.writer.num_sent
        self._guard.pay(self._num_sent - sent)
        if not stream_id:
            if not num_bytes:
                raise broken("a WINDOW_UPDATE of nothing")
            self.writer.grow(num_bytes)
            return
        call = self._calls.get(stream_id)
        if call is None:
            self._check_known(stream_id)
        elif not num_bytes:
            self._stream_error(call, ErrorCode.PROTOCOL_ERROR)
        elif not self.writer.grow_stream(call, num_bytes):
            self._stream_error(call, ErrorCode.FLOW_CONTROL_ERROR)

    def _on_rst_stream(self, _: int, stream_id: int, payload: bytes) -> None:
        check_length(payload, UINT32.size, "RST_STREAM")
        self._check_known(stream_id)
        call = self._calls.pop(stream_id, None)
        if call is not None:
            if call.is_nearly_expired:
                self._guard.refund(_FRAMES_OF_REQUEST + 1)
            call.reset()
            self._close_if_done()
