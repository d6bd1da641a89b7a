"""The streams of one connection by RFC 9113, and a call for each."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import grpc

from services.grpc_server.calls.call import Call
from services.grpc_server.headers.header_decoder import HeaderDecoder
from services.grpc_server.headers.header_fragments import HeaderFragments
from services.grpc_server.headers.request_headers import MalformedFieldsError
from services.grpc_server.headers.response_headers import trailers_only_block
from services.grpc_server.http2.closed_streams import ResetStreams, SkippedStreams
from services.grpc_server.http2.control_frames import DRAIN_PING, ControlFrames
from services.grpc_server.http2.flood import FloodGuard
from services.grpc_server.http2.frame_writer import FrameWriter
from services.grpc_server.http2.frames import (
    CONTINUATION,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    UINT32,
    WINDOW_UPDATE,
    ErrorCode,
    Http2ConnectionError,
    check_length,
    frame,
    goaway,
    protocol_error,
    rst_stream,
    window_update,
)
from services.grpc_server.http2.reader import FrameReader
from services.grpc_server.limits import CONNECTION_WINDOW, MAX_WINDOW, STREAM_WINDOW
from services.grpc_server.server_options import ServerOptions

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

# HEADERS and DATA of a small request.
_FRAMES_OF_REQUEST: Final = 2


class Streams:
    """Handles the frames of a connection, and is what its calls see of it."""

    def __init__(
        self,
        find: "Callable[[str], Handler | None]",
        options: ServerOptions,
        writer: FrameWriter,
        peer: str,
        close: Callable[[], None],
    ) -> None:
        """No frame was received.

        Args:
            find: the handler of a path, None for an unknown one.
            options: the server's.
            writer: of the connection.
            peer: address of the client, as gRPC writes it.
            close: is called when a connection that drains has no call left.

        Attributes:
            reader, control: of its frames; of those that concern the connection.
            last_stream_id: that was served, as GOAWAY has it.
        """
        self.writer = writer
        self.peer = peer
        self.options = options
        self._guard = FloodGuard(options.limits.free_frames, options.limits.free_frames_per_second)
        self.reader = FrameReader(self, options.read_buffer, self._guard)
        self.stop_reading = self.reader.stop_filling
        self.pay_answer = self._guard.pay_answer
        self._find = find
        self._limits = options.limits
        self._close = close
        self._calls: dict[int, Call] = {}
        self._cancelled_handlers: set[asyncio.Task[None]] = set()
        self.last_stream_id = 0
        self._num_sent = 0
        # Frames of these may have been sent before the client received RST_STREAM, and until then
        # it counts them among its open streams.
        self._resets = ResetStreams(options.limits.max_streams)
        self._skipped = SkippedStreams()
        self._window_in = CONNECTION_WINDOW
        self._headers = HeaderDecoder(options.limits.max_metadata_bytes, self._guard)
        self.control = ControlFrames(
            writer, self._guard, self._calls.values, self._refuse_new, self._limits.max_ping_strikes
        )
        self.header_fragments = HeaderFragments(self._on_headers)
        self._is_draining = self._is_refusing = False
        self._frame_handlers = {
            HEADERS: self.header_fragments.on_headers,
            CONTINUATION: self.header_fragments.on_continuation,
            WINDOW_UPDATE: self._on_window_update,
            RST_STREAM: self._on_rst_stream,
            **self.control.handlers,
        }

    # ---- called by the reader

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """A frame of any kind but DATA; see `frames.frame`; raises Http2ConnectionError."""
        self._check_order(kind, stream_id)
        handle = self._frame_handlers.get(kind)
        if handle is not None:  # unknown kinds are ignored
            handle(flags, stream_id, payload)

    def data(self, stream_id: int, size: int, *, num_bytes: int, is_last: bool) -> Call | None:
        """A DATA frame begins; raises Http2ConnectionError.

        Args:
            stream_id: of the stream.
            size: with padding, which counts for flow control.
            num_bytes: without.
            is_last: END_STREAM is set.

        Returns:
            The call that its bytes are for; None discards them.
        """
        self._check_order(-1, stream_id)
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
            # Ended by its client.
            self._guard.charge()
            self._send_reset(stream_id, ErrorCode.STREAM_CLOSED)
        elif self._resets.take(stream_id, size):
            self._guard.refund_data(num_bytes)

    def stream_closed(self, call: Call) -> None:
        """The last frame of the stream is written."""
        if self._calls.pop(call.stream_id, None) is None:
            return
        if call.is_handled:
            self._guard.pay_answer()
        else:
            self._guard.refund(_FRAMES_OF_REQUEST)
        if not call.is_half_closed:
            # RFC 9113, section 8.1: the answer is complete, the rest of the request is not needed.
            self._send_reset(call.stream_id, ErrorCode.NO_ERROR, call.window_in)
        if not self._calls:
            # No other answer can share this write.
            self.writer.flush()
            self._close_if_done()

    def reset_stream(self, call: Call) -> None:
        """Reset the stream, and discard what is pending of its answer."""
        self._reset(call, ErrorCode.CANCEL)

    def handler_cancelled(self, task: asyncio.Task[None]) -> None:
        """Count a cancelled handler as a stream until it has ended."""
        self._cancelled_handlers.add(task)
        task.add_done_callback(self._cancelled_handlers.discard)

    # ---- called by the connection

    def drain(self) -> None:
        """Shut down gracefully (RFC 9113, section 6.8): new calls go to other servers."""
        self._is_draining = True
        # Two GOAWAY frames: requests that cross the first one are still served.
        self.writer.control(goaway(MAX_WINDOW, ErrorCode.NO_ERROR) + frame(PING, 0, 0, DRAIN_PING))
        asyncio.get_running_loop().call_later(self._limits.drain_timeout_s, self._refuse_new)

    def end_all(self, code: grpc.StatusCode, details: str) -> None:
        """End every call with a status, behind GOAWAY with the last stream that was served."""
        self._refuse_new()
        for call in list(self._calls.values()):
            call.end(code, details)

    def connection_lost(self) -> None:
        """Cancel every call: nothing can be sent any more."""
        self._is_refusing = True
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.reset()

    def check_progress(self) -> None:
        """End requests that do not come; see `Call.check_progress`."""
        for call in tuple(self._calls.values()):
            call.check_progress()

    @property
    def num_calls(self) -> int:
        """Of open streams."""
        return len(self._calls)

    def _refuse_new(self) -> None:
        if self._is_draining and not self._is_refusing:
            self._is_refusing = True
            self.writer.control(goaway(self.last_stream_id, ErrorCode.NO_ERROR))
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_refusing and not self._calls:
            self._close()

    # ---- RFC 9113

    def _check_order(self, kind: int, stream_id: int) -> None:
        """Raise for a frame before SETTINGS (3.4) or within a header block (4.3)."""
        if self.header_fragments.stream_id:
            if kind != CONTINUATION or stream_id != self.header_fragments.stream_id:
                raise protocol_error("a frame within a header block")
        elif not self.control.has_settings and kind != SETTINGS:
            raise protocol_error("the first frame is not SETTINGS")

    def _check_known(self, stream_id: int) -> None:
        if stream_id > self.last_stream_id or not stream_id % 2:
            raise protocol_error(f"stream {stream_id} is idle")

    def _grant_connection(self) -> None:
        if self._window_in < 0:
            raise Http2ConnectionError(
                ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window"
            )
        self.writer.control(window_update(0, CONNECTION_WINDOW - self._window_in))
        self._window_in = CONNECTION_WINDOW

    def _stream_error(self, call: Call, code: ErrorCode) -> None:
        """Reset a stream for an error of its client (section 5.4.2), which is charged."""
        self._guard.charge()
        self._reset(call, code)

    def _reset(self, call: Call, code: ErrorCode) -> None:
        """Cancel a call and reset its stream."""
        del self._calls[call.stream_id]
        call.reset()
        self._send_reset(call.stream_id, code, call.window_in)
        self._close_if_done()

    def _send_reset(self, stream_id: int, code: ErrorCode, window_in: int = 0) -> None:
        """Send RST_STREAM; `window_in` bytes may have been sent before it arrives."""
        self._resets.add(stream_id, window_in)
        self.writer.control(rst_stream(stream_id, code))

    def _on_headers(self, stream_id: int, block: bytes, is_last: bool) -> None:
        """A complete header block: a new stream, or trailers."""
        if stream_id <= self.last_stream_id:
            self._on_trailers(stream_id, block, is_last=is_last)
            return
        # A new stream closes all idle ones below it (section 5.1.1).
        self._skipped.note_opened(stream_id, self.last_stream_id)
        self.last_stream_id = stream_id
        try:
            headers = self._headers.request_headers(block)
        except MalformedFieldsError:
            self._refuse_stream(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        num_running = len(self._calls) + len(self._cancelled_handlers)
        if self._is_refusing or num_running >= self._limits.max_streams:
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
        self._skipped.check(stream_id)
        # Decoded in any case: it may change the dynamic table.
        is_valid = self._headers.are_trailers(block)
        call = self._calls.get(stream_id)
        if call is None and stream_id in self._resets:
            return
        if call is None:
            raise Http2ConnectionError(ErrorCode.STREAM_CLOSED, f"stream {stream_id} is closed")
        if call.is_half_closed:
            self._stream_error(call, ErrorCode.STREAM_CLOSED)
        elif not is_valid or not is_last or not call.has_length(0, is_last=True):
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
        # WINDOW_UPDATE frames are paid by what was sent since the last one.
        self._guard.pay(self.writer.num_sent - self._num_sent)
        self._num_sent = self.writer.num_sent
        if not stream_id:
            if not num_bytes:
                raise protocol_error("WINDOW_UPDATE with an increment of 0")
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
