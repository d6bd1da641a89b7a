"""Streams that this server has reset: frames may still come (RFC 9113, section 5.1)."""


class ResetStreams:
    """The last ones of a connection."""

    def __init__(self, most: int) -> None:
        """Keep the `most` last ones."""
        self._most = most
        self._windows: dict[int, int] = {}

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._windows

    def add(self, stream_id: int, window: int) -> None:
        """One was reset; so many bytes may come before its client receives that."""
        if len(self._windows) >= self._most:
            # The oldest, as a dict keeps its order: late frames of that one are the least likely.
            del self._windows[next(iter(self._windows))]
        self._windows[stream_id] = window

    def take(self, stream_id: int, size: int) -> bool:
        """Take DATA of one; whether it may have been sent before RST_STREAM arrived."""
        left = self._windows[stream_id] - size
        self._windows[stream_id] = left
        return left >= 0
