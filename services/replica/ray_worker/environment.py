"""Environment variables that Ray's worker has before a replica runs in it."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from services.replica.own_threads import RAYS_THREADS_OFF

# Half the cost of an image-sized request was page faults of memory that malloc had just
# returned to the system; with these it keeps what it has.
_MALLOC: Final[Mapping[str, str]] = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "MALLOC_TOP_PAD_": "67108864",
}
# Of the raylet. It starts as many workers with the node as may start at once, by default one for
# each CPU; on hosts with a GPU each that is no fork imports torch, a quarter of a GiB.
_WARM_WORKERS: Final = {
    "RAY_preload_python_modules": "services.replica.ray_worker.imports",
    "RAY_worker_maximum_startup_concurrency": "8",
}
_VARIABLES: Final = {**_MALLOC, **RAYS_THREADS_OFF}


def node_environment() -> dict[str, str]:
    """Of a Ray whose nodes are this host: its workers inherit it."""
    threads = dict.fromkeys(RAYS_THREADS_OFF, str(os.cpu_count() or 1))
    return {**_MALLOC, **_WARM_WORKERS, **threads}


def own_environment() -> dict[str, str]:
    """What a replica has to ask Ray for; nothing where the nodes have it.

    Then Ray takes a worker that it has started already: a replaced replica saves the seconds of
    that start. What this process has counts as what its cluster's nodes have.
    """
    has_all = _MALLOC.items() <= os.environ.items() and RAYS_THREADS_OFF.keys() <= os.environ.keys()
    return {} if has_all else dict(_VARIABLES)


@contextmanager
def changed_for_imports(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Variables that libraries read as they are imported; None for none of that name.

    What the process does later has those that it was given.
    """
    given = {name: os.environ.pop(name, None) for name in changes}
    _set(changes)
    try:
        yield
    finally:
        _set(given)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
