"""A throw-away process that loads an engine and runs it once: `python -m ...engine.check_child`.

Loading machine code that some other machine made can end a process or leave device memory
behind for good. Both happen here first, where they do no harm. The order comes as JSON on
standard input; the last line of standard error is the error.
"""

import logging
import os
import subprocess
import sys
from pathlib import Path

from services.contracts.errors import EngineError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.document import Document
from services.contracts.model.manifest import EngineManifest, MasterRecord
from services.contracts.model.recipe import InputRecipe
from services.contracts.process.lifetime import end_with_parent
from services.engines.base import LoadSpec
from services.replica.engine.samples import probe_sizes, sample_inputs

logger = logging.getLogger(__name__)

_TIMEOUT_S = 300.0
_TAIL_LINES = 5


class CheckOrder(Document):
    """A LoadSpec as text, how to draw inputs, and the process that waits for the verdict."""

    manifest: EngineManifest
    master: MasterRecord
    directory: Path
    master_path: Path
    device: DeviceFacts
    num_threads: int
    inputs: dict[str, InputRecipe]
    parent_pid: int

    @property
    def load_spec(self) -> LoadSpec:
        """What the engine's `load` takes."""
        return LoadSpec(
            manifest=self.manifest,
            master=self.master,
            directory=self.directory,
            master_path=self.master_path,
            device=self.device,
            num_threads=self.num_threads,
        )


def check_in_child(spec: LoadSpec, inputs: dict[str, InputRecipe]) -> None:
    """Load and run an engine once in a process of its own.

    Raises:
        EngineError: the child failed, crashed or did not end in time; with its last output.
    """
    order = CheckOrder(
        manifest=spec.manifest,
        master=spec.master,
        directory=spec.directory,
        master_path=spec.master_path,
        device=spec.device,
        num_threads=spec.num_threads,
        inputs=inputs,
        parent_pid=os.getpid(),
    )
    try:
        done = subprocess.run(
            [sys.executable, "-m", "services.replica.engine.check_child"],
            input=order.model_dump_json().encode(),
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"check of the engine in a child process did not end within {_TIMEOUT_S:.0f} s"
        ) from error
    if done.returncode:
        tail = done.stderr.decode(errors="replace").strip().splitlines()[-_TAIL_LINES:]
        raise EngineError(
            f"check of the engine in a child process ended with {done.returncode}: "
            f"{' | '.join(tail) or 'no words'}"
        )


def main() -> int:
    """Run one check; returns the process's exit status."""
    from services.engines.loader import engine_class

    order = CheckOrder.from_json(sys.stdin.buffer.read())
    # A replica that was killed needs no verdict, and its successor needs the device.
    end_with_parent(order.parent_pid)
    try:
        engine = engine_class(order.manifest.key.kind).load(order.load_spec)
        smallest = probe_sizes(order.master.inputs, order.manifest.buckets)
        engine.run(sample_inputs(order.master, order.inputs, smallest))
        engine.close()
    except Exception as error:
        logger.error("%s: %s", type(error).__name__, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
