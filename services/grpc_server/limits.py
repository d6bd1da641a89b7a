"""What a client may make the server hold, and what it grants ahead."""

from dataclasses import dataclass
from typing import Final

# What a client may send before it hears of us: RFC 9113 sets both.
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME_BYTES: Final = 16_384
MAX_WINDOW: Final = 2**31 - 1
# Granted to each stream. A request of an image's size needs no grant more; a stream whose handler
# does not read holds no more than this.
STREAM_WINDOW: Final = 4 << 20
# Granted again as it is used up, in steps of at least this.
GRANT_BYTES: Final = STREAM_WINDOW // 2
# Granted to the sum of a connection's streams, and given back as bytes come: one stream that is
# not read shall not stop the others.
CONNECTION_WINDOW: Final = 64 << 20
# The largest frame that is taken: fewer heads for large requests, and as fair to small ones.
FRAME_BYTES: Final = 1 << 20
# A request of a method that takes no tensors.
SMALL_BYTES: Final = 4 << 20
# A header block, before it is decoded.
HEADER_BLOCK_BYTES: Final = 65_536
MAX_CONTINUATIONS: Final = 64


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds that a server is made with.

    Attributes:
        max_message_bytes: of a request as it comes, and of an answer.
        max_decompressed_bytes: of a request that came compressed, where that is less: a client
            sends a thousandth of it.
        large_paths: of the methods whose requests may have `max_message_bytes`; those of others
            have SMALL_BYTES at most. None: of all.
        max_upload_bytes: of requests larger than SMALL_BYTES, from when they begin to come until
            they are answered, over all connections; others wait until there is room. One alone
            may be larger. What came compressed counts as what it may become. On top come
            `max_small_bytes` and `max_unfinished_bytes`.
        max_unfinished_bytes: of all requests that have no room, as they are not whole, not large
            or wait; None is a quarter of `max_upload_bytes`, or 8 times what a stream may send
            unasked.
        max_streams: calls at once on one connection.
        max_metadata_bytes: of a call's header fields, each with 32 more than its name and value
            (RFC 9113, section 6.5.2).
        max_request_age_s: how long a unary request may take to come whole.
        max_connections: at once; more are closed at once.
        max_connection_idle_s: after so long without a call a connection is ended by GOAWAY; 0 is
            never.
        max_connection_age_s: after about so long a connection takes no new calls, by GOAWAY: its
            client connects anew, perhaps to another gateway; 0 is never.
        handshake_timeout_s: how long a new connection may take to send preface and SETTINGS.
        stall_timeout_s: how long a client that has room may stand still while others wait for some.
        drain_timeout_s: how long calls are taken that were on their way when GOAWAY was sent.
        linger_s: how long a peer may take to read why its connection ends.
        free_frames: that a client may send at once for nothing; see `flood.py`.
        free_frames_per_second: as many more with time. Clients that hedge or change their mind
            reset streams in earnest, at two or three frames for each.
    """

    max_message_bytes: int = 2**31 - 1
    max_decompressed_bytes: int = 256 << 20
    large_paths: frozenset[str] | None = None
    max_upload_bytes: int = 1 << 40
    max_unfinished_bytes: int | None = None
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

    @property
    def unfinished_bytes(self) -> int:
        """See `max_unfinished_bytes`."""
        if self.max_unfinished_bytes is not None:
            return self.max_unfinished_bytes
        return max(self.max_upload_bytes // 4, 8 * STREAM_WINDOW)

    @property
    def check_interval_s(self) -> float:
        """How often a connection looks at itself."""
        idle_s = self.max_connection_idle_s or self.stall_timeout_s
        return min(self.stall_timeout_s, idle_s / 4)

    def max_request_bytes(self, path: str) -> int:
        """Of a request to that method, as it comes."""
        if self.large_paths is None or path in self.large_paths:
            return self.max_message_bytes
        return min(self.max_message_bytes, SMALL_BYTES)
