"""Run half of kind `xla`: an executable of XLA per bucket, loaded by JAX without compiling.

Beside each executable lies the StableHLO that it was compiled from. Where the runtime does not take
the executable, that is compiled while the engine is loaded, as other libraries do with a graph.
"""

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.kinds import EngineKind
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.engines.artifacts.artifact_index import INDEX, ArtifactIndex, BucketArtifact
from services.engines.base import LoadSpec
from services.engines.compatibility import refuse_incompatible
from services.engines.device.toolchain import missing_reason
from services.engines.guarded import GuardedEngine, library_errors
from services.engines.request_check import Sizes
from services.engines.shapes import corner, shape_at, smallest_holding, write_padded

if TYPE_CHECKING:
    import jax
    import jax.stages

STABLEHLO = ".stablehlo"
# What XLA calls the instructions of generations that it is not to go beyond.
_LAST_INSTRUCTIONS: Final = {"v3": "AVX2"}
# XLA sizes its pool of threads by this variable, once, when its client is made.
_NUM_PROCESSORS = "NPROC"
_STARTING = threading.Lock()

logger = logging.getLogger(__name__)


class XlaEngine(GuardedEngine):
    """One executable for the largest sizes of each bucket; they share the weights."""

    name = "XLA"

    def __init__(
        self,
        spec: LoadSpec,
        index: ArtifactIndex,
        executables: "Sequence[tuple[jax.stages.Compiled, list[Any]]]",
    ) -> None:
        """Take executables that are loaded.

        Args:
            spec: manifest of the engine.
            index: bucket of each executable, and the values that inputs are padded with.
            executables: each with its weights, in the order of `index`.
        """
        super().__init__(spec.manifest.inputs, spec.manifest.outputs, spec.manifest.buckets)
        self._buckets = [artifact.bucket for artifact in index.artifacts]
        self._pads: Mapping[str, float] = index.pads
        self._executables = list(executables)

    @classmethod
    def unavailable_reason(cls) -> str:
        """Why XLA cannot be used here, or ""; weights are read by torch."""
        return missing_reason("jax") or missing_reason("jaxlib") or missing_reason("torch")

    @classmethod
    def load(cls, spec: LoadSpec) -> Self:
        """Load every bucket's executable and give it the master's weights."""
        # Before any of its bytes are loaded: code of another generation ends the process by SIGILL.
        refuse_incompatible(spec, EngineKind.XLA)
        with library_errors("XLA's executable failed to load"):
            return cls(spec, *_loaded(spec))

    def _compute(self, arrays: list[Array], sizes: Sizes) -> Sequence[Array]:
        number = smallest_holding(self._buckets, sizes)
        executable, weights = self._executables[number]
        largest = {name: dim.max for name, dim in self._buckets[number].dims.items()}
        inputs = [
            _padded(spec, array, largest, self._pads.get(spec.name, 0.0))
            for spec, array in zip(self._inputs, arrays, strict=True)
        ]
        results = executable(*weights, *inputs)
        # Copies: what JAX gives on a CPU is its own memory.
        return [
            np.array(np.asarray(result)[corner(shape_at(spec, sizes))])
            for spec, result in zip(self._outputs, results, strict=True)
        ]

    def _release(self) -> None:
        self._executables.clear()


def start_jax(platform: Platform, num_threads: int = 0) -> "jax.Device":
    """The device that engines of a platform run on; makes JAX's client at the first call.

    Args:
        platform: of the engine.
        num_threads: of this whole process, as the first call says; 0 for each processor.

    Raises:
        RuntimeError: JAX has no such device here.
    """
    import jax

    # JAX has the same names.
    name = platform.value
    with _STARTING:
        if num_threads:
            os.environ[_NUM_PROCESSORS] = str(num_threads)
        # 64-bit inputs and outputs would be cut to 32 bits.
        jax.config.update("jax_enable_x64", True)
        # Without its name JAX would start, and prefer, every device that it finds.
        jax.config.update("jax_platforms", name if platform is Platform.CPU else f"{name},cpu")
        # It would take three quarters of the device's memory, whatever engines beside it need.
        jax.config.update("jax_pjrt_client_create_options", {"preallocate": False})
        device: jax.Device = jax.devices(name)[0]
        return device


def compile_stablehlo(
    stablehlo: bytes, generation: Generation, device: "jax.Device"
) -> "jax.stages.Compiled":
    """Compile what `jax.export` wrote, for a generation, on this machine.

    Args:
        stablehlo: a function of weights and inputs, of static shapes.
        generation: decides on the instructions.
        device: runs it.
    """
    import jax
    import jax.export

    exported = jax.export.deserialize(bytearray(stablehlo))
    place = jax.sharding.SingleDeviceSharding(device)
    arguments = [
        jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=place) for each in exported.in_avals
    ]
    last = _LAST_INSTRUCTIONS.get(generation.isa)
    options = {"xla_cpu_max_isa": last} if last else None
    return jax.jit(exported.call).lower(*arguments).compile(compiler_options=options)


def _loaded(
    spec: LoadSpec,
) -> "tuple[ArtifactIndex, list[tuple[jax.stages.Compiled, list[Any]]]]":
    import jax

    from services.engines.artifacts.artifact_weights import WeightTable
    from services.engines.torch_runtime.torch_arrays import array_over

    device = start_jax(spec.device.parsed_generation.platform, spec.num_threads)
    index = ArtifactIndex.from_json((spec.directory / INDEX).read_bytes())
    table = WeightTable.open(spec.directory, spec.master_path, "cpu")
    # Buckets share them: each is put on the device once.
    refs = {ref for artifact in index.artifacts for ref in artifact.weights}
    weights = {
        ref: jax.device_put(array_over(table.tensor(ref).contiguous()), device) for ref in refs
    }
    executables = [
        (_executable(spec, artifact, device), [weights[ref] for ref in artifact.weights])
        for artifact in index.artifacts
    ]
    return index, executables


def _executable(
    spec: LoadSpec, artifact: BucketArtifact, device: "jax.Device"
) -> "jax.stages.Compiled":
    path = spec.directory / artifact.file
    num_arguments = len(artifact.weights) + len(spec.manifest.inputs)
    try:
        return _deserialised(path, num_arguments, len(spec.manifest.outputs), device)
    except Exception:
        # Each version and device has errors of its own, and what they mean is known: compile.
        logger.warning("XLA does not load %s: compiling it", path.name, exc_info=True)
    generation = Generation.parse(spec.manifest.key.generation)
    return compile_stablehlo(path.with_suffix(STABLEHLO).read_bytes(), generation, device)


def _deserialised(
    path: Path, num_arguments: int, num_results: int, device: "jax.Device"
) -> "jax.stages.Compiled":
    import jax
    from jax.experimental.serialize_executable import deserialize_and_load

    arguments = jax.tree.structure((tuple(range(num_arguments)), {}))
    results = jax.tree.structure(tuple(range(num_results)))
    return deserialize_and_load(
        path.read_bytes(),
        arguments,
        results,
        backend=device.client,
        execution_devices=[device],
    )


def _padded(spec: TensorSpec, array: Array, largest: Sizes, pad: float) -> Array:
    shape = shape_at(spec, largest)
    if array.shape == shape:
        return array
    target: Array = np.empty(shape, NUMPY_FROM_DATATYPE[spec.datatype])
    write_padded(target, array, pad)
    return target
