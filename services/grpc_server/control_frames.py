"""Frames that concern a whole connection: what they mean to a server that answers calls."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from services.grpc_server.flood import FloodGuard
from services.grpc_server.frame_writer import FrameWriter, SendStream
from services.grpc_server.frames import (
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
    broken,
    check_length,
    frame,
)
from services.grpc_server.limits import DEFAULT_FRAME_BYTES, FRAME_BYTES, MAX_WINDOW
from services.grpc_server.response_headers import DEFAULT_TABLE_BYTES

FrameHandler = Callable[[int, int, bytes], None]
DRAIN_PING: Final = b"draining"
_MAX_FRAME_BYTES: Final = 2**24 - 1
# Windows of so many streams are as much work as another frame, and so are so many settings.
_STREAMS_PER_FRAME: Final = 16
_SETTINGS_PER_FRAME: Final = 8


class ControlFrames:
    """One connection's.

    Attributes:
        handlers: what to call with a frame's flags, stream and payload, by its kind. Each may
            raise Http2ConnectionError.
        has_settings: settings have come, which must be the first frame.
    """

    def __init__(
        self,
        writer: FrameWriter,
        guard: FloodGuard,
        streams: Callable[[], Iterable[SendStream]],
        on_drained: Callable[[], None],
    ) -> None:
        """`streams` are those of open streams; `on_drained` is called when DRAIN_PING came back."""
        self._writer, self._guard = writer, guard
        self._streams, self._on_drained = streams, on_drained
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
            raise broken(f"SETTINGS of stream {stream_id}")
        if flags & ACK:
            if not self.has_settings:
                raise broken("settings are acknowledged before any were said")
            check_length(payload, 0, "an acknowledgement of SETTINGS")
            return
        self.has_settings = True
        self._guard.charge(len(payload) // (SETTING.size * _SETTINGS_PER_FRAME))
        if len(payload) % SETTING.size:
            raise Http2ConnectionError(
                ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes: no multiple of 6"
            )
        for key, value in SETTING.iter_unpack(payload):
            _check(key, value)
        # First: the client counts by its new windows from here on, and a larger one sends at once.
        self._writer.control(frame(SETTINGS, ACK, 0))
        # Of a setting that comes twice the last counts; a frame may hold thousands.
        self._apply(dict(SETTING.iter_unpack(payload)))

    def _apply(self, settings: Mapping[int, int]) -> None:
        """Take over what means something to whoever answers."""
        # No larger than ours: one stream's frame holds up all others for as long as it takes.
        taken = settings.get(Setting.MAX_FRAME_SIZE, self._writer.max_frame_bytes)
        self._writer.max_frame_bytes = min(taken, FRAME_BYTES)
        table_bytes = settings.get(Setting.HEADER_TABLE_SIZE, DEFAULT_TABLE_BYTES)
        if table_bytes < DEFAULT_TABLE_BYTES:
            self._writer.disable_dynamic_table()
        window = settings.get(Setting.INITIAL_WINDOW_SIZE)
        if window is not None:
            streams = list(self._streams())
            self._guard.charge(len(streams) // _STREAMS_PER_FRAME)
            # Last, as what waits for a larger window is sent at once.
            self._writer.set_initial_window(window, streams)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        check_length(payload, len(DRAIN_PING), "PING")
        if stream_id:
            raise broken(f"PING of stream {stream_id}")
        if not flags & ACK:
            self._writer.control(frame(PING, ACK, 0, payload))
        elif payload == DRAIN_PING:
            self._on_drained()

    def _on_priority(self, _: int, stream_id: int, payload: bytes) -> None:
        """Streams are served alike, whatever their client would prefer."""
        check_length(payload, 5, "PRIORITY")
        if not stream_id:
            raise broken("PRIORITY of the connection")

    def _on_push_promise(self, _: int, stream_id: int, __: bytes) -> None:
        raise broken(f"PUSH_PROMISE on stream {stream_id}: clients promise nothing")

    def _on_goaway(self, _: int, stream_id: int, payload: bytes) -> None:
        """The client begins nothing more, and closes when it has its answers."""
        if len(payload) < GOAWAY_HEAD.size:
            raise Http2ConnectionError(
                ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes: expected 8 or more"
            )
        if stream_id:
            raise broken(f"GOAWAY of stream {stream_id}")


def _check(key: int, value: int) -> None:
    """Raise Http2ConnectionError for a value that a setting cannot have (section 6.5.2)."""
    if key == Setting.INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
        raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, f"windows of {value}")
    if key == Setting.MAX_FRAME_SIZE and not DEFAULT_FRAME_BYTES <= value <= _MAX_FRAME_BYTES:
        raise broken(f"frames of {value} bytes")
    if key == Setting.ENABLE_PUSH and value > 1:
        raise broken(f"ENABLE_PUSH of {value}")
