"""The registry that a command works on."""

import getpass
import os
import socket

from services.cli.fleet.fleet_file import find_fleet
from services.cli.settings import CliSettings
from services.contracts.errors import NotFoundError
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store, open_tested_store


def open_registry(settings: CliSettings) -> Registry:
    """Open a store that is there, and the cache, to read.

    Raises:
        InvalidRequestError: the store's URL is wrong.
        NotFoundError: no store is there.
    """
    store = open_store(settings.store_url, must_exist=True)
    return Registry(store, settings.cache_dir, settings.sample_key)


def open_registry_to_publish(settings: CliSettings, *, must_exist: bool = False) -> Registry:
    """Open store and cache to publish.

    Args:
        settings: name the store.
        must_exist: for commands that work on a model which the store already holds. Where this
            host's fleet uses a store, it must: a new one in its place would be another store.

    Raises:
        InvalidRequestError: the store's URL is wrong.
        NotFoundError: a store must be there and is not.
        UnsafeStoreError: the store lets a second create overwrite the first.
        StoreError: the store cannot be opened or written to.
    """
    from services.engines.caches.compile_cache import use_compile_cache

    settings.cache_dir.mkdir(parents=True, exist_ok=True)
    # Before an export: torch may name a folder of its own then, and the builds inherit it.
    use_compile_cache(settings.cache_dir)
    running = find_fleet(settings.run_dir)
    is_in_use = running is not None and running.store_url == settings.store_url
    try:
        store = open_tested_store(settings.store_url, must_exist=must_exist or is_in_use)
    except NotFoundError as error:
        if not is_in_use:
            raise
        raise NotFoundError(
            f"no store at {settings.store_url}, from which this host's fleet serves: put it back "
            "(is its volume mounted?), or end the fleet first: smelt down"
        ) from error
    return Registry(store, settings.cache_dir, settings.sample_key)


def who_asks() -> str:
    """`user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
