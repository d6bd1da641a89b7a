"""The registry that a command works on."""

from services.cli.settings import CliSettings
from services.contracts.object_store import open_store
from services.contracts.registry import Registry


def open_registry(settings: CliSettings) -> Registry:
    """Open store and cache; raises StoreError or UnsafeStoreError."""
    return Registry(open_store(settings.store_url), settings.cache_dir)
