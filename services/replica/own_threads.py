"""How many threads the libraries of a replica take: decided on the node where it runs.

The application is built on another host, with another number of processors. Left
alone, Ray sets OMP_NUM_THREADS for each call of an actor, to the CPUs that it asked for, which
are a token here.
"""

import os

_VARIABLE = "OMP_NUM_THREADS"
# Of the library that tokenises.
_OF_TEXTS = "RAYON_NUM_THREADS"
# Of an actor that starts with any value, even with none in it, Ray leaves the variable alone.
RAYS_THREADS_OFF = {_VARIABLE: ""}


def claim_threads(num_threads: int) -> None:
    """Set the threads of this process and of its children; before a library reads them.

    Args:
        num_threads: 0 for as many as there are processors that this process may use.
    """
    os.environ[_VARIABLE] = os.environ[_OF_TEXTS] = str(own_threads(num_threads))


def own_threads(num_threads: int) -> int:
    """The same as a number, for a library that would take, and bind to, each core of the host."""
    return num_threads or len(os.sched_getaffinity(0))
