"""A throw-away process that loads an engine and runs it once: `python -m ...engine.check_child`.

Loading machine code that some other machine made can end a process or leave device memory
behind for good. Both happen here first, where they do no harm. The order comes as JSON on
standard input; the last line of standard error is the error.
"""

import logging
import os
import signal
import subprocess
import sys

from services.contracts.errors import CheckUnfinishedError, EngineError
from services.contracts.model.document import Document
from services.contracts.model.recipe import InputRecipe
from services.contracts.process.lifetime import end_with_parent
from services.contracts.text.words import last_lines
from services.engines.base import LoadSpec
from services.replica.engine.samples import probe_sizes, sample_inputs

logger = logging.getLogger(__name__)

_MAX_LIMIT_S = 300.0
# A process that imports torch takes 5 s alone, and some ten times as long beside builds.
MIN_LIMIT_S = 120.0
# That a process ends itself with; others come from outside, as the kernel's where memory is short.
_OWN_SIGNALS = (
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGSEGV,
    signal.SIGSYS,
)


class CheckOrder(Document):
    """What to load, how to draw inputs, and the process that waits for the verdict."""

    spec: LoadSpec
    inputs: dict[str, InputRecipe]
    parent_pid: int


def check_limit_s(proof_s: float) -> float:
    """Seconds that a check may take: others of this host wait meanwhile.

    A proof loads an engine too, and runs it many times.

    Args:
        proof_s: seconds of the engine's proof; 0 where they are unknown.
    """
    return min(max(2 * proof_s, MIN_LIMIT_S), _MAX_LIMIT_S) if proof_s else _MAX_LIMIT_S


def check_in_child(
    spec: LoadSpec, inputs: dict[str, InputRecipe], limit_s: float = _MAX_LIMIT_S
) -> None:
    """Load and run an engine once in a process of its own.

    Args:
        spec: what is loaded.
        inputs: how its inputs are drawn.
        limit_s: seconds after which the process is ended.

    Raises:
        EngineError: the child failed or crashed; with its last output.
        CheckUnfinishedError: it did not end in time, or was ended.
    """
    order = CheckOrder(spec=spec, inputs=inputs, parent_pid=os.getpid())
    try:
        done = subprocess.run(
            [sys.executable, "-m", "services.replica.engine.check_child"],
            input=order.model_dump_json().encode(),
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CheckUnfinishedError(
            f"check of the engine in a child process did not end within {limit_s:g} s"
        ) from error
    if done.returncode:
        is_ended = done.returncode < 0 and -done.returncode not in _OWN_SIGNALS
        raise (CheckUnfinishedError if is_ended else EngineError)(
            f"check of the engine in a child process ended with {done.returncode}: "
            f"{last_lines(done.stderr)}"
        )


def main() -> int:
    """Run one check; returns the process's exit status."""
    from services.engines.loader import engine_class

    order = CheckOrder.from_json(sys.stdin.buffer.read())
    # A replica that was killed needs no verdict, and its successor needs the device.
    end_with_parent(order.parent_pid)
    try:
        spec = order.spec
        engine = engine_class(spec.manifest.key.kind).load(spec)
        smallest = probe_sizes(spec.master.inputs, spec.manifest.buckets)
        engine.run(sample_inputs(spec.master, order.inputs, smallest))
        engine.close()
    except Exception as error:
        logger.error("%s: %s", type(error).__name__, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
