"""The account of answers that wait for their clients, over all connections of one process.

Flow control lets a client leave answers unread on as many streams and connections as it likes.
Beyond the bound, the connection ends whose oldest answer has waited for the longest: one that reads
does not end for others that do not.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.grpc_server.http2.frame_writer import FrameWriter


class UnreadAnswers:
    """Bytes of messages that are not sent to their last byte.

    Attributes:
        num_bytes: of all connections.
    """

    def __init__(self, max_bytes: int) -> None:
        """At most `max_bytes` wait; a single answer may be larger."""
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._writers: set[FrameWriter] = set()

    def is_behind(self, writer: "FrameWriter") -> bool:
        """Whether one connection has half of all that may wait: it shall ask for no more."""
        return writer.num_unread * 2 > self._max_bytes

    def count(self, writer: "FrameWriter", num_bytes: int) -> None:
        """So many bytes more wait on a connection, or fewer; may end the one read slowest."""
        writer.num_unread += num_bytes
        self.num_bytes += num_bytes
        if not writer.num_unread:
            self._writers.discard(writer)
            return
        self._writers.add(writer)
        is_more = 0 < num_bytes < self.num_bytes
        while is_more and self.num_bytes > self._max_bytes:
            min(self._writers, key=lambda each: each.waits_since_s).end_unread()

    def forget(self, writer: "FrameWriter") -> None:
        """A connection is closed."""
        self.num_bytes -= writer.num_unread
        writer.num_unread = 0
        self._writers.discard(writer)
