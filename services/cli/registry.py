"""The registry that a command works on."""

from services.cli.settings import CliSettings
from services.contracts.object_store import open_store, open_tested_store
from services.contracts.registry import Registry


def open_registry(settings: CliSettings) -> Registry:
    """Open store and cache to read; raises InvalidRequestError or StoreError."""
    return Registry(open_store(settings.store_url), settings.cache_dir)


def open_registry_to_publish(settings: CliSettings) -> Registry:
    """Open store and cache to publish.

    Raises:
        InvalidRequestError: the store's URL is wrong.
        UnsafeStoreError: the store lets a second create overwrite the first.
        StoreError: the store cannot be opened or written to.
    """
    return Registry(open_tested_store(settings.store_url), settings.cache_dir)
