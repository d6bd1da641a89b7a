"""Inductor on a CPU: an AOTInductor package, a shared library with its prepacked weights."""

import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import DimRange
from services.engines.base import LoadSpec
from services.engines.request_check import Sizes
from services.engines.shapes import check_within, union_of

if TYPE_CHECKING:
    import torch

PACKAGE = "engine.pt2"
_MODEL_NAME = "model"
_NUM_RUNNERS = 1
_NO_DEVICE = -1
# One load at a time: what another thread's loader unpacked must not be removed too early.
_LOADING = threading.Lock()
_EXTRACTED = re.compile(r"/.*/aotinductor_[^/]+(?=/)")


class PackageProgram:
    """A loaded package; it takes every shape of the box around the engine's buckets."""

    def __init__(self, loader: Any, ranges: Mapping[str, DimRange]) -> None:
        self._loader = loader
        self._ranges = ranges

    @classmethod
    def load(cls, spec: LoadSpec) -> Self:
        """Open the package; `num_threads` sets torch's threads of this whole process."""
        import torch

        if spec.num_threads:
            torch.set_num_threads(spec.num_threads)
        # The public loader compiles instruction-set probes, for seconds and with a compiler,
        # only to print a warning; generation and torch version are checked before this.
        with _LOADING:
            loader = torch._C._aoti.AOTIModelPackageLoader(  # noqa: SLF001
                str(spec.directory / PACKAGE), _MODEL_NAME, False, _NUM_RUNNERS, _NO_DEVICE
            )
            _unlink_extracted()
        return cls(loader, union_of(spec.manifest.buckets))

    def run(self, arrays: list[Array], sizes: Sizes) -> Sequence[Array]:
        """Results in output order, of any shape; the package itself checks none.

        Raises InvalidRequestError for sizes outside those that it was exported for.
        """
        from services.engines.torch_runtime.torch_arrays import array_from_tensor, tensor_from_array

        check_within(self._ranges, sizes)
        outputs: list[torch.Tensor] = self._loader.boxed_run([tensor_from_array(a) for a in arrays])
        return [array_from_tensor(tensor) for tensor in outputs]


def _unlink_extracted() -> None:
    """Remove the files that the loader unpacked; they are mapped and stay usable.

    The loader removes them when it is destroyed, which a killed process never does: every
    restart of a replica would leave a copy of the engine in the temporary folder.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = _EXTRACTED.search(line)
        if match:
            shutil.rmtree(match[0], ignore_errors=True)
