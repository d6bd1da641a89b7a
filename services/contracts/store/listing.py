"""The keys of a store at one moment: what many questions of one pass are answered from."""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable


class Listing:
    """Lists each folder at the top of a store once, when it is first asked for.

    One request of the store answers every question below that folder, however many models ask;
    threads may share it.
    """

    def __init__(self, list_folder: Callable[[str], list[str]]) -> None:
        """Nothing is listed yet; `list_folder` is `ArtifactStore.list`."""
        self._list_folder = list_folder
        self._lock = threading.Lock()
        self._keys: dict[str, list[str]] = {}

    def with_keys(self, folders: Iterable[str], keys: Iterable[str]) -> "Listing":
        """Take these keys for all that there is below these folders; no request is made."""
        known = sorted(keys)
        self._keys |= {folder: keys_below(known, folder) for folder in folders}
        return self

    def below(self, prefix: str) -> list[str]:
        """Keys below a prefix that ends with '/', sorted; raises StoreError."""
        folder = _folder_of(prefix)
        with self._lock:
            if folder not in self._keys:
                self._keys[folder] = self._list_folder(folder)
            keys = self._keys[folder]
        return keys_below(keys, prefix)


def keys_below(keys: list[str], prefix: str) -> list[str]:
    """Those of sorted keys that are below a prefix that ends with '/'."""
    # '0' follows '/': all that begins with the prefix sorts before that.
    return keys[bisect_left(keys, prefix) : bisect_left(keys, f"{prefix[:-1]}0")]


def _folder_of(key: str) -> str:
    return key.partition("/")[0] + "/"
