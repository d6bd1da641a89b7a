"""Run half of kind `onnxruntime`: the master itself, or a typed copy of it, in ONNX Runtime.

Arrays are of any shape.
"""

import ctypes
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

import numpy as np

from services.contracts.errors import EngineError
from services.contracts.hardware.facts import Platform
from services.contracts.hardware.kinds import EngineKind
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.contracts.model.manifest import EngineManifest, MasterRecord
from services.contracts.model.recipe import Bucket
from services.engines.base import LoadSpec
from services.engines.compatibility import refuse_incompatible
from services.engines.device.toolchain import missing_reason
from services.engines.guarded import GuardedEngine, library_errors
from services.engines.request_check import Sizes, contiguous

if TYPE_CHECKING:
    import onnxruntime

TYPED_MODEL = "typed.onnx"
_ERRORS_ONLY = 3
# It moves a QuantizeLinear before a Reshape with an `output_dtype` of int8; on x86 the next
# one changes int8 to uint8, without that attribute, and the session refuses its own graph.
_DISABLED_OPTIMIZERS = ("QDQPropagationTransformer",)
_CUDA = "CUDAExecutionProvider"
# TF32 keeps 10 of 23 bits of a product's operands: not what fp32 promises.
_PROVIDER_OPTIONS = {_CUDA: {"use_tf32": "0"}}
_BFLOAT16 = NUMPY_FROM_DATATYPE["BF16"]
_ONNX_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16


_Model = MasterRecord | EngineManifest


class OnnxruntimeEngine(GuardedEngine):
    """One session; shapes are dynamic, so buckets do not bound it."""

    name = "ONNX Runtime"

    def __init__(
        self, model: _Model, buckets: Sequence[Bucket], session: "onnxruntime.InferenceSession"
    ) -> None:
        """Take a session that is open.

        Args:
            model: specs of the model's tensors.
            buckets: ranges of sizes that the engine is proven for.
            session: ONNX Runtime's, of the model.
        """
        super().__init__(model.inputs, model.outputs, buckets)
        self._session: onnxruntime.InferenceSession | None = session
        self._has_bfloat16 = has_bfloat16(self._inputs, self._outputs)

    @classmethod
    def unavailable_reason(cls) -> str:
        """Why ONNX Runtime cannot be used here, or ""."""
        return missing_reason("onnxruntime")

    @classmethod
    def load(cls, spec: LoadSpec) -> Self:
        """Open a session on the published typed model, on the master when there is none."""
        refuse_incompatible(spec, EngineKind.ONNXRUNTIME)
        has_own_model = TYPED_MODEL in spec.manifest.files
        path = spec.directory / TYPED_MODEL if has_own_model else spec.master_path
        platform = spec.device.parsed_generation.platform
        with library_errors(f"ONNX Runtime failed to load {path.name}"):
            session = open_session(str(path), platform, spec.num_threads)
        return cls(spec.manifest, spec.manifest.buckets, session)

    @classmethod
    def of_master(
        cls, master: MasterRecord, buckets: Sequence[Bucket], path: Path, *, num_threads: int = 0
    ) -> Self:
        """The master on the CPU, its graph as it is: what everything else is held to.

        Args:
            master: names and types of inputs and outputs.
            buckets: decide which sizes may be 0.
            path: of the master's `model.onnx`.
            num_threads: 0 leaves it to the library.

        Raises:
            EngineError: ONNX Runtime is not installed, or refuses the master.
        """
        if reason := cls.unavailable_reason():
            raise EngineError(reason)
        with library_errors(f"ONNX Runtime failed to load {path.name}"):
            session = open_session(str(path), Platform.CPU, num_threads, is_optimised=False)
        return cls(master, buckets, session)

    def num_kernels(self, inputs: Mapping[str, Array]) -> int:
        """Nodes in the profile of a call, for which a session is opened beside this one."""
        assert self._session is not None
        with TemporaryDirectory() as folder:
            options = self._session.get_session_options()
            options.enable_profiling = True
            options.profile_file_prefix = f"{folder}/call"
            # It takes time and memory, and changes no node.
            options.add_session_config_entry("session.disable_prepacking", "1")
            path = self._session._model_path  # noqa: SLF001
            providers = self._session.get_providers()
            off = list(_DISABLED_OPTIMIZERS)
            session = type(self._session)(path, options, providers, disabled_optimizers=off)
            session.run(None, dict(inputs))
            events = json.loads(Path(session.end_profiling()).read_bytes())
        return sum(event["cat"] == "Node" for event in events)

    def _compute(self, arrays: list[Array], sizes: Sizes) -> Sequence[Array]:
        assert self._session is not None
        wanted = [spec.name for spec in self._outputs]
        feeds = {spec.name: array for spec, array in zip(self._inputs, arrays, strict=True)}
        if self._has_bfloat16:
            return run_as_values(self._session, wanted, feeds)
        results: list[Array] = self._session.run(wanted, feeds)
        return results

    def _release(self) -> None:
        self._session = None


def has_bfloat16(*tensors: Sequence[TensorSpec]) -> bool:
    """Whether a model's tensors need `run_as_values`."""
    return any(spec.datatype == "BF16" for spec in chain(*tensors))


def run_as_values(
    session: "onnxruntime.InferenceSession", wanted: Sequence[str], feeds: Mapping[str, Array]
) -> list[Array]:
    """Run with bfloat16 among inputs or outputs: it has no numpy type that `run` would take.

    Args:
        session: gives an OrtValue for each name.
        wanted: names of outputs.
        feeds: inputs by name.

    Returns:
        The outputs in the order of `wanted`.
    """
    from onnxruntime import OrtValue

    # The session reads the arrays where they are: they have to be kept until it is done.
    arrays = {name: contiguous(array) for name, array in feeds.items()}
    values = {
        name: OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _ONNX_BFLOAT16)
        if array.dtype == _BFLOAT16
        else OrtValue.ortvalue_from_numpy(array)
        for name, array in arrays.items()
    }
    return [_array_of(value) for value in session.run_with_ort_values(wanted, values)]


def _array_of(value: "onnxruntime.OrtValue") -> Array:
    if value.data_type() != "tensor(bfloat16)":
        array: Array = value.numpy()
        return array
    shape = value.shape()
    # Copied below: this memory goes with the value.
    words = (ctypes.c_uint16 * int(np.prod(shape))).from_address(value.data_ptr())
    return np.array(words, np.uint16).view(_BFLOAT16).reshape(shape)


def open_session(
    path: str, platform: Platform, num_threads: int = 0, *, is_optimised: bool = True
) -> "onnxruntime.InferenceSession":
    """A deterministic session on the platform's execution provider.

    Args:
        path: of the ONNX file.
        platform: of the device; decides on the provider.
        num_threads: within an operator; 0 leaves it to ONNX Runtime.
        is_optimised: False switches ONNX Runtime's graph optimizations off, as for references.

    Raises:
        RuntimeError: this build of ONNX Runtime has no provider for the platform, or the
            provider cannot run here.
    """
    import onnxruntime

    provider = provider_of(platform)
    if platform is Platform.CUDA:
        # CUDA's libraries lie in packages of their own, which no loader searches.
        onnxruntime.preload_dlls()
    options = onnxruntime.SessionOptions()
    # What was proven is served only where the same inputs give the same numbers.
    options.use_deterministic_compute = True
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    # As torch's threads do (`waiting_threads`): they share the processors with others.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Before VNNI two products of bytes are added in sixteen bits and saturate: a third of a
    # quantised classifier's answers changed. With bytes of both sides unsigned they do not.
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = _ERRORS_ONLY
    # A reference shares no rewrite of the graph with the engine that it checks.
    if not is_optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        path,
        options,
        providers=[(provider, _PROVIDER_OPTIONS.get(provider, {}))],
        disabled_optimizers=list(_DISABLED_OPTIMIZERS),
    )
    require_provider(session, provider)
    return session


def require_provider(session: "onnxruntime.InferenceSession", provider: str) -> None:
    """Refuse a session that fell back to another provider.

    Raises:
        RuntimeError: it did. ONNX Runtime only prints so, and computes on the CPU instead.
    """
    used = session.get_providers()
    if provider not in used:
        raise RuntimeError(
            f"the session runs on {', '.join(used)}; wanted {provider}, which did not start: "
            "see the process's standard error, and install the CUDA libraries that it names"
        )


def provider_of(platform: Platform) -> str:
    """The execution provider of a platform.

    Raises:
        RuntimeError: it is not in this build. ONNX Runtime would only warn and use the CPU.
    """
    import onnxruntime

    name = _CUDA if platform is Platform.CUDA else "CPUExecutionProvider"
    available = onnxruntime.get_available_providers()
    if name not in available:
        raise RuntimeError(f"{name} wanted, this build has {', '.join(available)}")
    return name
