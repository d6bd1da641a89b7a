"""Which store this is: another one may turn up where the first one was."""

from services.contracts.errors import NotFoundError, StoreError
from services.contracts.store.artifact_store import ArtifactStore
from services.contracts.store.object_store import SELF_TEST_KEY


class SameStore:
    """Refuses to go on with another store than the one that was there at first."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._known = ""

    def check(self) -> None:
        """Look who it is; one that was never tested has no identity, and any may follow it.

        Raises:
            StoreError: it is another one, or none, or it cannot be read.
        """
        found = _identity(self._store)
        self._known = self._known or found
        if found != self._known:
            raise StoreError(
                f"{self._store!r} is {'another store' if found else 'empty'} now: it says "
                f"'{found}', wanted '{self._known}'. What serves is left as it is; put the store "
                "back (is its volume mounted?), or start the fleet anew to go on with this one"
            )


def _identity(store: ArtifactStore) -> str:
    """What the first process that tested a store left in it; "" in an untested one."""
    try:
        return store.read(SELF_TEST_KEY).decode(errors="replace")
    except NotFoundError:
        return ""
