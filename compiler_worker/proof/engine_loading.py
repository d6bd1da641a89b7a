"""What a child loads before it proves or times: torch as replicas set it, and engines."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from compiler_worker.children.requests import ProofRequest
from services.engines.base import Engine, LoadSpec
from services.engines.caches.compile_cache import use_compile_cache
from services.engines.loader import engine_class


def prepare_torch(request: ProofRequest) -> None:
    """Compile cache, threads and full precision, before torch computes anything."""
    import torch

    from services.engines.torch_runtime.full_precision import use_full_fp32

    use_compile_cache(request.cache_dir)
    if request.num_threads:
        torch.set_num_threads(request.num_threads)
    # Eager's own error sets the bound for fp32 engines: it must be fp32 throughout.
    use_full_fp32()


def load_engine(request: ProofRequest, findings: list[str]) -> Engine:
    """Load the engine as a replica would; what its loader warns of is added to `findings`.

    Raises:
        EngineError: it does not load; of class EngineIncompatibleError where others may load it.
    """
    spec = LoadSpec(
        manifest=request.manifest,
        master=request.master,
        directory=request.engine_dir,
        master_path=request.master_path,
        device=request.device,
        num_threads=request.num_threads,
    )
    with _warnings_into(findings):
        return engine_class(request.manifest.key.kind).load(spec)


class _Collector(logging.Handler):
    """Collects warnings that libraries log."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self._lines.append(record.getMessage())


@contextmanager
def _warnings_into(lines: list[str]) -> Iterator[None]:
    """Collect Python warnings and logged warnings of the block, word for word."""
    collector = _Collector(lines)
    logging.getLogger().addHandler(collector)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            yield
        lines.extend(str(warning.message) for warning in caught)
    finally:
        logging.getLogger().removeHandler(collector)
