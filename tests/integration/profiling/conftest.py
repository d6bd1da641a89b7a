"""The small model of the compiler's tests, in a store of its own."""

from tests.integration.compiler.conftest import settings, version, worker

__all__ = ["settings", "version", "worker"]
