"""The inside of a build task on Ray: it runs the compiler, and reports its exit."""

import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import services
from services.contracts.hardware.labels import SIMULATED_LABEL
from services.telemetry.logs import configure_logging

logger = logging.getLogger(__name__)

# Behind everything that serves on the same node.
_NICENESS = 10
_MAX_LINE_LENGTH = 2000
# What the compiler does within a stage, many lines in a second.
_DETAIL = ":   "
# Ray gives these to an actor without resources: one thread, and no GPU.
_RAYS_OWN = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


class BuildActor:
    """Runs one build task; the work is done in the background of its constructor.

    A call that the death of its caller would cancel is not needed for it.
    """

    def __init__(self, arguments: list[str], is_on_device: bool) -> None:
        """Start the compiler.

        Args:
            arguments: of `python -m compiler_worker`.
            is_on_device: it works for this node's own class: a simulated one, where the node
                is labelled so.
        """
        configure_logging("build")
        logger.setLevel(logging.DEBUG)
        self._last_line = ""
        self._node = _node()
        self._code: int | None = None
        simulated = _simulated_generation() if is_on_device else ""
        if simulated:
            arguments = [*arguments, "--device-generation", simulated]
        # The thread that starts a process is the parent whose death ends it (PDEATHSIG).
        self._thread = threading.Thread(target=self._run, args=(arguments,), daemon=True)
        self._thread.start()

    def status(self) -> tuple[int | None, str, str]:
        """The exit code, None while it runs; its last line; the node that it is on."""
        return self._code, self._last_line[-_MAX_LINE_LENGTH:], self._node

    def _run(self, arguments: list[str]) -> None:
        try:
            self._code = self._run_to_end(arguments)
        except OSError as error:
            self._last_line = f"the compiler cannot be started: {error}"
            self._code = 1

    def _run_to_end(self, arguments: list[str]) -> int:
        unset = [word for name in _RAYS_OWN for word in ("-u", name)]
        command = ["env", *unset, sys.executable, "-m", "compiler_worker", *arguments]
        with subprocess.Popen(
            [*command, "--parent-pid", str(os.getpid())],
            # Found there by `-m`, also by the processes that the compiler starts. Those end with
            # it, and it ends with this actor, however that ends.
            cwd=Path(services.__path__[0]).parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # A process group of its own, with the child's pid as its id: for setpriority below.
            start_new_session=True,
        ) as process:
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PGRP, process.pid, _NICENESS)
            assert process.stdout is not None
            for line in process.stdout:
                _keep(line)
                self._last_line = line.strip() or self._last_line
            return process.wait()


def _keep(line: str) -> None:
    """Put a line of the compiler into this worker's log, where `smelt logs` finds it."""
    if line.startswith("{"):  # a record already
        sys.stderr.write(line)
    else:
        logger.log(logging.DEBUG if _DETAIL in line else logging.INFO, "%s", line.rstrip())


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _simulated_generation() -> str:
    import ray

    labels = ray.get_runtime_context().get_node_labels()
    return str(labels.get(SIMULATED_LABEL, ""))
