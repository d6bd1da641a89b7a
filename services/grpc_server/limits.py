"""Limits of what clients may make a server hold, and windows of flow control."""

from dataclasses import dataclass
from typing import Final

# Initial values of RFC 9113.
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME_BYTES: Final = 16_384
MAX_WINDOW: Final = 2**31 - 1
# Requests up to this size are received without a reservation.
SMALL_BYTES: Final = 4 << 20
# SETTINGS_INITIAL_WINDOW_SIZE of this server: a request without a reservation does not wait for
# WINDOW_UPDATE, and a stream whose handler does not read holds no more than this. Windows do not
# bound what one connection makes the server hold: `max_streams` of them are 4 GiB, and would be
# 1 GiB at 1 MiB each. `max_unfinished_bytes` does, which counts every byte as it comes, over all
# connections, and ends the call that goes beyond: at least 8 streams can fill their windows.
STREAM_WINDOW: Final = SMALL_BYTES
# The least increment of WINDOW_UPDATE.
GRANT_BYTES: Final = STREAM_WINDOW // 2
# Of a connection, refilled as bytes come: one stream that is not read does not stop the others.
# What was sent and not read yet is in the buffers of sockets, and not in the server's memory.
CONNECTION_WINDOW: Final = 64 << 20
# SETTINGS_MAX_FRAME_SIZE: fewer frames for large requests, and as fair to small ones.
FRAME_BYTES: Final = 1 << 20
# Of a header block, encoded; a list that is longer when decoded ends its connection too.
HEADER_BLOCK_BYTES: Final = 32_768
MAX_CONTINUATIONS: Final = 64


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one server.

    Attributes:
        max_message_bytes: of a request as it is sent, and of an answer.
        max_decompressed_bytes: of a request that is sent compressed, which may be a thousandth.
        large_paths: of the methods whose requests may have `max_message_bytes`; those of others
            have SMALL_BYTES at most. None: of all.
        max_upload_bytes: reserved by requests larger than SMALL_BYTES, from their first bytes until
            they are answered, over all connections; others wait. A single one may be larger. A
            compressed one reserves what it may become. On top comes `max_unfinished_bytes`.
        max_unfinished_bytes: of requests without a reservation: incomplete ones, those that wait,
            and what small compressed ones become; None is a quarter of `max_upload_bytes`, at
            least 8 * STREAM_WINDOW.
        max_unread_bytes: of answers that wait for their clients, on top of both; beyond it, slow
            readers are refused more, or end for others. A single answer may be larger. None is a
            quarter of `max_upload_bytes`, at least 64 MiB.
        max_streams: SETTINGS_MAX_CONCURRENT_STREAMS.
        max_metadata_bytes: of a call's header fields, each with 32 more than its name and value
            (RFC 9113, section 6.5.2).
        max_request_age_s: in which a unary request has to be complete.
        max_connections: open at a time, with TLS handshakes that have begun; more are closed.
        max_connection_idle_s: without a call, after which a connection gets GOAWAY; 0 is never.
        max_connection_age_s: after which a connection gets GOAWAY, so that its client connects
            anew, perhaps to another server; 0 is never.
        handshake_timeout_s: of a TLS handshake, and then in which a client has to send preface and
            SETTINGS.
        stall_timeout_s: without progress, after which a request that holds memory may be ended
            while others wait for memory.
        drain_timeout_s: in which calls that crossed GOAWAY are still served.
        linger_s: in which a client may read GOAWAY before its connection is closed.
        free_frames: that a client may send at once without useful work; see `http2/flood.py`.
        free_frames_per_second: as many more with time. Clients that hedge reset streams, with two
            or three frames for each.
        max_ping_strikes: PING frames, each within a second of the one before and with nothing in
            between, after which a connection gets GOAWAY with "too_many_pings".
    """

    max_message_bytes: int = 2**31 - 1
    max_decompressed_bytes: int = 256 << 20
    large_paths: frozenset[str] | None = None
    max_upload_bytes: int = 1 << 40
    max_unfinished_bytes: int | None = None
    max_unread_bytes: int | None = None
    max_streams: int = 1024
    max_metadata_bytes: int = 16_384
    max_request_age_s: float = 600.0
    max_connections: int = 10_000
    max_connection_idle_s: float = 0.0
    max_connection_age_s: float = 0.0
    handshake_timeout_s: float = 20.0
    stall_timeout_s: float = 30.0
    drain_timeout_s: float = 1.0
    linger_s: float = 1.0
    free_frames: int = 10_000
    free_frames_per_second: int = 2_000
    max_ping_strikes: int = 100

    @property
    def unfinished_bytes(self) -> int:
        """See `max_unfinished_bytes`."""
        if self.max_unfinished_bytes is not None:
            return self.max_unfinished_bytes
        return max(self.max_upload_bytes // 4, 8 * STREAM_WINDOW)

    @property
    def unread_bytes(self) -> int:
        """See `max_unread_bytes`."""
        if self.max_unread_bytes is not None:
            return self.max_unread_bytes
        return max(self.max_upload_bytes // 4, 64 << 20)

    @property
    def check_interval_s(self) -> float:
        """Between two checks of requests and of idle connections."""
        idle_s = self.max_connection_idle_s or self.stall_timeout_s
        return min(self.stall_timeout_s, idle_s / 4)

    def max_request_bytes(self, path: str) -> int:
        """Of a request to that method, as it is sent."""
        if self.large_paths is None or path in self.large_paths:
            return self.max_message_bytes
        return min(self.max_message_bytes, SMALL_BYTES)
