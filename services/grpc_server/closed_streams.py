"""Streams that were reset here, whose clients may not know it yet (RFC 9113, section 5.1)."""


class ResetStreams:
    """Those of one connection that were reset last."""

    def __init__(self, most: int) -> None:
        """So many are remembered."""
        self._most = most
        self._windows: dict[int, int] = {}

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._windows

    def add(self, stream_id: int, window: int) -> None:
        """One was reset; its client may send so many bytes before it knows."""
        if len(self._windows) >= self._most:
            del self._windows[next(iter(self._windows))]
        self._windows[stream_id] = window

    def take(self, stream_id: int, size: int) -> bool:
        """So many bytes came on one of them; whether they may have been sent in good faith."""
        left = self._windows[stream_id] - size
        self._windows[stream_id] = left
        return left >= 0
