"""Streams that are closed, of which frames may still come: reset ones and skipped ones."""

from array import array
from typing import Final

from services.grpc_server.http2.frames import protocol_error

# Clients use one identifier after the other; ranges that were skipped are the work of hostile ones.
_MAX_RANGES: Final = 64


class ResetStreams:
    """The last ones of a connection that this server has reset (RFC 9113, section 5.1)."""

    def __init__(self, most: int) -> None:
        """Keep the `most` last ones."""
        self._most = most
        # In the order in which they were reset. A client can fill these without sending a request:
        # 12 KB for 1,024 streams, of which a dict takes 100.
        self._ids = array("I")
        self._windows = array("q")

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._ids

    def add(self, stream_id: int, window: int) -> None:
        """One was reset; so many bytes may come before its client receives that."""
        if len(self._ids) >= self._most:
            # The oldest: its late frames are the least likely.
            del self._ids[0]
            del self._windows[0]
        self._ids.append(stream_id)
        self._windows.append(window)

    def take(self, stream_id: int, size: int) -> bool:
        """Take DATA of one; whether it may have been sent before RST_STREAM arrived."""
        place = self._ids.index(stream_id)
        self._windows[place] -= size
        return self._windows[place] >= 0


class SkippedStreams:
    """Identifiers that a client has passed over, which may not be used any more.

    RFC 9113, section 5.1.1: the identifier of a new stream "MUST be numerically greater than all
    streams that the initiating endpoint has opened"; another one is a connection error of type
    PROTOCOL_ERROR. HEADERS of a stream that was open are one of type STREAM_CLOSED (section 5.1).
    The highest identifier alone does not tell these two apart, and a client can skip every second
    one of 2**30: kept are the last ranges. HEADERS of a stream that was skipped before are taken
    for those of one that was open, so that all that differs is the code of GOAWAY.
    """

    def __init__(self) -> None:
        """Nothing was skipped."""
        self._ranges: list[range] = []

    def note_opened(self, stream_id: int, last_stream_id: int) -> None:
        """A stream is opened, behind `last_stream_id`, which is 0 for none."""
        if stream_id > last_stream_id + 2:
            # Streams of clients are odd.
            self._ranges.append(range(last_stream_id + 1 + last_stream_id % 2, stream_id, 2))
            del self._ranges[:-_MAX_RANGES]

    def check(self, stream_id: int) -> None:
        """Raise Http2ConnectionError for HEADERS of a stream that was skipped."""
        if any(stream_id in each for each in self._ranges):
            raise protocol_error(f"stream {stream_id} was skipped and cannot be opened")
