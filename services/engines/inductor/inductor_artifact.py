"""Inductor on a GPU: one static artifact per bucket, captured in a CUDA graph.

A request is written into host memory at the largest sizes of the cheapest bucket that holds it;
the graph copies that to the device, computes, and copies the outputs back, of which the request
gets its part. Smaller ones than a bucket's least were never proven:
the batcher pads those that may grow. The device is an argument, so the same
path runs on a CPU in tests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.engines.artifacts.artifact_index import INDEX, ArtifactIndex, BucketArtifact
from services.engines.artifacts.artifact_weights import WeightTable
from services.engines.base import LoadSpec
from services.engines.inductor.cuda_graph import Call, Capture
from services.engines.request_check import Sizes
from services.engines.shapes import corner, shape_at, smallest_holding, write_padded
from services.engines.torch_runtime.torch_arrays import array_from_tensor, array_over, torch_dtype

# Takes 0.3 ms at 50 GB/s; a request may have asked for a small part of it.
_MOST_BYTES_BACK = 16 * 2**20


@dataclass(frozen=True, kw_only=True)
class StaticInput:
    """An input buffer that a captured graph reads.

    Attributes:
        staging: host memory of the same shape; pinned where the device is a GPU.
        device: the buffer itself.
    """

    staging: torch.Tensor
    device: torch.Tensor

    def fill(self, array: Array, pad: float) -> None:
        """Put an array, of any shape that fits, at the origin of the staging memory; else `pad`."""
        write_padded(array_over(self.staging), array, pad)

    def send(self) -> None:
        """Copy to the device, within what is captured; not waited for."""
        self.device.copy_(self.staging, non_blocking=True)


@dataclass(frozen=True, kw_only=True)
class BucketProgram:
    """Code, buffers and captured call of one bucket."""

    inputs: tuple[StaticInput, ...]
    call: Call


class ArtifactProgram:
    """All buckets of an engine."""

    def __init__(
        self, spec: LoadSpec, index: ArtifactIndex, programs: Sequence[BucketProgram]
    ) -> None:
        """Take programs that are loaded.

        Args:
            spec: manifest of the engine.
            index: bucket of each program, and the values that inputs are padded with.
            programs: one for each artifact of `index`, in its order.
        """
        self._inputs = spec.manifest.inputs
        self._outputs = spec.manifest.outputs
        self._buckets = [artifact.bucket for artifact in index.artifacts]
        self._pads: Mapping[str, float] = index.pads
        self._programs = programs
        self._is_cuda = any(each.device.is_cuda for p in programs for each in p.inputs)

    @classmethod
    def load(cls, spec: LoadSpec, *, device: str, capture: Capture) -> Self:
        """Load every bucket's artifact, give it the weights, and capture it.

        Args:
            spec: files and manifest of the engine, and its master.
            device: torch's name of it, as "cuda:0".
            capture: makes of a bucket's call one that replays it, see `cuda_graph`.
        """
        from torch._inductor import config

        index = ArtifactIndex.from_json((spec.directory / INDEX).read_bytes())
        weights = WeightTable.open(spec.directory, spec.master_path, device)
        # Nothing is left to compile: processes that wait for such work only delay the exit.
        with config.patch(compile_threads=1):
            programs = [
                _load_bucket(spec, each, weights, device, capture) for each in index.artifacts
            ]
        return cls(spec, index, programs)

    def run(self, arrays: list[Array], sizes: Sizes) -> Sequence[Array]:
        """Pad inputs of any shape, replay, and copy this request's part of each output.

        Raises InvalidRequestError for sizes outside every bucket.
        """
        program = self._programs[smallest_holding(self._buckets, sizes)]
        for spec, buffer, array in zip(self._inputs, program.inputs, arrays, strict=True):
            buffer.fill(array, self._pads.get(spec.name, 0.0))
        results = program.call()
        if self._is_cuda:
            torch.cuda.current_stream().synchronize()
        # Copies: the next replay writes to the same memory.
        return [
            array_from_tensor(result[corner(shape_at(spec, sizes))])
            for spec, result in zip(self._outputs, results, strict=True)
        ]


def _load_bucket(
    spec: LoadSpec, artifact: BucketArtifact, weights: WeightTable, device: str, capture: Capture
) -> BucketProgram:
    from torch._inductor.standalone_compile import CompiledArtifact

    code = CompiledArtifact.load(path=str(spec.directory / artifact.file), format="binary")
    # The code has no dynamic sizes: it is compiled for the largest ones.
    sizes = {name: dim.max for name, dim in artifact.bucket.dims.items()}
    inputs = tuple(_static_input(each, sizes, device) for each in spec.manifest.inputs)
    arguments = [weights.tensor(ref) for ref in artifact.weights]
    arguments += [buffer.device for buffer in inputs]

    kept: list[torch.Tensor] = []

    def call() -> Sequence[torch.Tensor]:
        for buffer in inputs:
            buffer.send()
        # Grad mode belongs to the thread, and the artifact was compiled without it.
        with torch.no_grad():
            outputs: Sequence[torch.Tensor] = code(*arguments)
        if not kept:
            kept.extend(_host_memory(outputs))
        for host, output in zip(kept, outputs, strict=False):
            host.copy_(output, non_blocking=True)
        return kept or outputs

    return BucketProgram(inputs=inputs, call=capture(call))


def _host_memory(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Where a graph leaves its outputs; none where a request may want a small part of much."""
    if sum(each.nbytes for each in outputs) > _MOST_BYTES_BACK:
        return []
    return [torch.empty_like(each, device="cpu", pin_memory=each.is_cuda) for each in outputs]


def _static_input(spec: TensorSpec, sizes: Sizes, device: str) -> StaticInput:
    shape = shape_at(spec, sizes)
    dtype = torch_dtype(spec.datatype)
    # Zeros: the warm-up of a capture runs on them, and they are valid as indices too.
    staging = torch.zeros(shape, dtype=dtype, pin_memory=device != "cpu")
    return StaticInput(staging=staging, device=torch.zeros(shape, dtype=dtype, device=device))
