"""The fallback of a replica: the master's graph from the compiler, compiled by torch here.

Serving never imports the compiler: a child process of it writes the master's graph as an
exported program, once for each master and torch version on a machine.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from services.contracts.errors import EngineError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.kserve.tensors import strings_among
from services.contracts.model.manifest import ModelVersion
from services.contracts.text.words import last_lines
from services.engines.fallback.fallback_engine import FallbackEngine, FallbackSpec
from services.engines.fallback.fallback_program import kept_program
from services.engines.shapes import ranges_text


@dataclass(frozen=True)
class CompiledFallback:
    """Loads the fallback engine of a model version; see `loaded_engine.FallbackLoader`.

    Attributes:
        cache_dir: programs are kept below it.
        timeout_s: that an export may take.
    """

    store_url: str
    cache_dir: Path
    device: DeviceFacts
    num_threads: int = 0
    timeout_s: float = 900.0

    def __call__(self, model: ModelVersion) -> FallbackEngine:
        """A loaded fallback engine.

        Raises:
            EngineError: torch or the compiler is missing here, the graph cannot be exported,
                or torch fails on it.
        """
        if reason := FallbackEngine.unavailable_reason():
            raise EngineError(f"no fallback for model '{model.name}': {reason}")
        # A child would need seconds for the same result.
        if strings := strings_among(model.master.inputs, model.master.outputs):
            raise EngineError(
                f"no fallback for model '{model.name}': {strings} is strings (BYTES), which torch "
                "does not have; it serves once it can load a proven engine of kind onnxruntime "
                f"(smelt why {model.name})"
            )
        return FallbackEngine.load(
            FallbackSpec(
                program_path=kept_program(
                    self.cache_dir, model.master, model.buckets, partial(self._export, model)
                ),
                master=model.master,
                buckets=model.buckets,
                device=self.device,
                num_threads=self.num_threads,
            )
        )

    def _export(self, model: ModelVersion, draft: Path) -> None:
        options = {
            "--version": model.version,
            "--store-url": self.store_url,
            "--cache-dir": self.cache_dir,
            "--output": draft,
            # It works for minutes, and what it writes would not be used.
            "--parent-pid": os.getpid(),
        }
        arguments = [str(word) for option in options.items() for word in option]
        command = [sys.executable, "-m", "compiler_worker", "export-graph", model.name, *arguments]
        what = f"no fallback: the compiler's export of model '{model.name}'"
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"{what} did not end within {self.timeout_s:.0f} s") from error
        if done.returncode:
            words = last_lines(done.stderr)
            raise EngineError(f"{what} ended with {done.returncode}: {words}{_by_default(model)}")


def _by_default(model: ModelVersion) -> str:
    """Log that a recipe has no shapes to serve, which the graph may not support."""
    if model.recipe.buckets:
        return ""
    asked = " or ".join(ranges_text(bucket.dims) for bucket in model.buckets)
    return f" (for {asked}, as its recipe names no buckets)"
