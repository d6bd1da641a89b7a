"""Which fleet a Ray cluster has: that of one store, as applications have names of models alone.

Another fleet would take its applications for those of removed models, and end them; so would
`smelt down`, whose fleet is another one's.
"""

from collections.abc import Iterable
from typing import Final

from services.contracts.errors import InvalidRequestError

_KEY: Final = b"smelt:store"
_PREFIX: Final = "smelt"


def claim_cluster(store_url: str, applications: Iterable[str]) -> None:
    """Have the joined cluster for the fleet of a store.

    Args:
        store_url: of this fleet.
        applications: names of all that Serve has there.

    Raises:
        InvalidRequestError: the fleet of another store has some of them.
    """
    from ray.experimental.internal_kv import _internal_kv_put

    if any(name.startswith(_PREFIX) for name in applications):
        check_owner(store_url)
    _internal_kv_put(_KEY, store_url.encode(), overwrite=True)


def check_owner(store_url: str) -> None:
    """Raise InvalidRequestError where the fleet of another store has the cluster."""
    from ray.experimental.internal_kv import _internal_kv_get

    owner = (_internal_kv_get(_KEY) or b"").decode()
    if owner not in ("", store_url):
        raise InvalidRequestError(
            f"this Ray cluster has the fleet of store {owner}, and has one fleet at a time; this "
            f"one is on {store_url}: stop the other on its host (smelt down), or join another "
            "cluster"
        )
