"""The account of answers that wait for their clients, over all connections of one process.

Flow control lets a client leave answers unread on as many streams and connections as it likes.
Where one more would exceed the bound, connections that wait and are read slower end for it; a
connection that is itself the slowest is refused that answer, and goes on.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from services.grpc_server.http2.frame_writer import FrameWriter

# Of the mean of connections that wait: to end those with less would gain little.
_LEAST_SHARE: Final = 0.5


class UnreadAnswers:
    """Bytes of messages that are not sent to their last byte."""

    def __init__(self, max_bytes: int) -> None:
        """At most `max_bytes` wait; a single answer may be larger.

        Attributes:
            num_bytes: of all connections.
        """
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._writers: set[FrameWriter] = set()

    def admits(self, writer: "FrameWriter", num_bytes: int) -> bool:
        """Whether so many bytes more may wait on a connection; may end slower ones for them."""
        if self._fits(num_bytes):
            return True
        for each in tuple(self._writers):
            each.settle()
        while not self._fits(num_bytes):
            slowest = self._slowest(writer, num_bytes)
            if slowest is writer:
                return False
            slowest.end_unread()
        return True

    def _fits(self, num_bytes: int) -> bool:
        return not self.num_bytes or self.num_bytes + num_bytes <= self._max_bytes

    def _slowest(self, writer: "FrameWriter", num_bytes: int) -> "FrameWriter":
        """Of those with a fair part of what waits, the one that has read the least of late."""
        waiting = self._writers | {writer}
        least = (self.num_bytes + num_bytes) / len(waiting) * _LEAST_SHARE
        large = {each for each in waiting if each.num_unread >= least}
        if writer.num_unread + num_bytes >= least:
            large.add(writer)
        return min(large, key=lambda each: each.num_sent_lately)

    def count(self, writer: "FrameWriter", num_bytes: int) -> None:
        """So many bytes more wait on a connection, or fewer."""
        writer.num_unread += num_bytes
        self.num_bytes += num_bytes
        if writer.num_unread:
            self._writers.add(writer)
        else:
            self._writers.discard(writer)

    def forget(self, writer: "FrameWriter") -> None:
        """A connection is closed."""
        self.num_bytes -= writer.num_unread
        writer.num_unread = 0
        self._writers.discard(writer)
