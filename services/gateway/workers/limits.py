"""How many workers a gateway may have; apart, so that the command line imports nothing heavy."""

from typing import Final

# More than any host has use for: each is a process with connections to every replica.
MAX_WORKERS: Final = 256
