"""SETTINGS, PING, PRIORITY, PUSH_PROMISE and GOAWAY of a client."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from services.grpc_server.headers.response_headers import DEFAULT_TABLE_BYTES
from services.grpc_server.http2.flood import FRAME_COST, FloodGuard
from services.grpc_server.http2.frame_writer import FrameWriter
from services.grpc_server.http2.frames import (
    ACK,
    GOAWAY,
    GOAWAY_HEAD,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    SETTING,
    SETTINGS,
    ErrorCode,
    Http2ConnectionError,
    Setting,
    check_length,
    frame,
    protocol_error,
)
from services.grpc_server.http2.send_stream import SendStream
from services.grpc_server.limits import DEFAULT_FRAME_BYTES, FRAME_BYTES, MAX_WINDOW

FrameHandler = Callable[[int, int, bytes], None]
DRAIN_PING: Final = b"draining"
_MAX_FRAME_BYTES: Final = 2**24 - 1
# PING frames of keepalive come less often; those that measure bandwidth come with others.
_MIN_PING_INTERVAL_S: Final = 1.0
# Changed windows of so many streams cost as much as a frame, and so do so many settings.
_STREAMS_PER_FRAME: Final = 16
_SETTINGS_PER_FRAME: Final = 8


class ControlFrames:
    """One connection's.

    Attributes:
        handlers: by kind of frame, take its flags, stream and payload; may raise
            Http2ConnectionError.
        has_settings: SETTINGS were received, which must be the first frame.
    """

    def __init__(
        self,
        writer: FrameWriter,
        guard: FloodGuard,
        streams: Callable[[], Iterable[SendStream]],
        on_drained: Callable[[], None],
        max_ping_strikes: int,
    ) -> None:
        """Nothing was received.

        Args:
            writer: of the connection.
            guard: of the connection.
            streams: gives the open ones.
            on_drained: is called when DRAIN_PING is acknowledged.
            max_ping_strikes: see `Limits`.
        """
        self._writer = writer
        self._guard = guard
        self._streams = streams
        self._on_drained = on_drained
        self._max_ping_strikes = max_ping_strikes
        self._num_ping_strikes = 0
        # The time of the last PING, and what `guard` had left then.
        self._ping_s = float("-inf")
        self._ping_left = 0
        self.has_settings = False
        self.handlers: Mapping[int, FrameHandler] = {
            SETTINGS: self._on_settings,
            PING: self._on_ping,
            PRIORITY: self._on_priority,
            PUSH_PROMISE: self._on_push_promise,
            GOAWAY: self._on_goaway,
        }

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise protocol_error(f"SETTINGS of stream {stream_id}")
        if flags & ACK:
            if not self.has_settings:
                raise protocol_error("SETTINGS with ACK as the first frame")
            check_length(payload, 0, "SETTINGS with ACK")
            return
        self.has_settings = True
        self._guard.charge(len(payload) // (SETTING.size * _SETTINGS_PER_FRAME))
        if len(payload) % SETTING.size:
            raise Http2ConnectionError(
                ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes: no multiple of 6"
            )
        # All of them before any is applied: a frame is valid as a whole.
        for key, value in SETTING.iter_unpack(payload):
            _check(key, value)
        # First: the client counts with its new windows from here on, and larger ones send at once.
        self._writer.control(frame(SETTINGS, ACK, 0))
        # Of a setting that comes twice the last one holds; a frame may have thousands.
        self._apply(dict(SETTING.iter_unpack(payload)))

    def _apply(self, settings: Mapping[int, int]) -> None:
        """Take over the settings that concern a server."""
        # At most ours: a frame delays all other streams.
        taken = settings.get(Setting.MAX_FRAME_SIZE, self._writer.max_frame_bytes)
        self._writer.max_frame_bytes = min(taken, FRAME_BYTES)
        table_bytes = settings.get(Setting.HEADER_TABLE_SIZE, DEFAULT_TABLE_BYTES)
        if table_bytes < DEFAULT_TABLE_BYTES:
            self._writer.disable_dynamic_table()
        window = settings.get(Setting.INITIAL_WINDOW_SIZE)
        if window is not None:
            streams = list(self._streams())
            self._guard.charge(len(streams) // _STREAMS_PER_FRAME)
            # Last, as pending DATA is sent at once.
            self._writer.set_initial_window(window, streams)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        check_length(payload, len(DRAIN_PING), "PING")
        if stream_id:
            raise protocol_error(f"PING of stream {stream_id}")
        if not flags & ACK:
            self._check_pings()
            self._writer.control(frame(PING, ACK, 0, payload))
        elif payload == DRAIN_PING:
            self._on_drained()

    def _check_pings(self) -> None:
        """Raise Http2ConnectionError for PING in quick succession with nothing in between.

        Clients of gRPC know the debug data, and send PING half as often on their next connection.
        """
        now_s = time.monotonic()
        left = self._guard.left
        is_quick = now_s - self._ping_s < _MIN_PING_INTERVAL_S
        # Any other frame, and any answer, changes what the connection has left in another way.
        is_strike = is_quick and left == self._ping_left - FRAME_COST
        self._num_ping_strikes = self._num_ping_strikes + 1 if is_strike else 0
        self._ping_s = now_s
        self._ping_left = left
        if self._num_ping_strikes > self._max_ping_strikes:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")

    def _on_priority(self, _: int, stream_id: int, payload: bytes) -> None:
        """Ignored: RFC 9113 deprecates priorities."""
        check_length(payload, 5, "PRIORITY")
        if not stream_id:
            raise protocol_error("PRIORITY of the connection")

    def _on_push_promise(self, _: int, stream_id: int, __: bytes) -> None:
        raise protocol_error(f"PUSH_PROMISE on stream {stream_id}: clients may not push")

    def _on_goaway(self, _: int, stream_id: int, payload: bytes) -> None:
        """Nothing to do: the client opens no more streams, and closes when they are answered."""
        if len(payload) < GOAWAY_HEAD.size:
            raise Http2ConnectionError(
                ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes: expected 8 or more"
            )
        if stream_id:
            raise protocol_error(f"GOAWAY of stream {stream_id}")


def _check(key: int, value: int) -> None:
    """Raise Http2ConnectionError for a value out of range (section 6.5.2)."""
    if key == Setting.INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
        raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, f"windows of {value}")
    if key == Setting.MAX_FRAME_SIZE and not DEFAULT_FRAME_BYTES <= value <= _MAX_FRAME_BYTES:
        raise protocol_error(f"frames of {value} bytes")
    if key == Setting.ENABLE_PUSH and value > 1:
        raise protocol_error(f"ENABLE_PUSH of {value}")
