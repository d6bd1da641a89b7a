"""Run half of kind `onnxruntime`: the master itself, or a typed copy of it, in ONNX Runtime."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from services.contracts.hardware import Platform
from services.contracts.kinds import EngineKind
from services.contracts.tensors import Array
from services.engines.base import LoadSpec
from services.engines.compatibility import refuse_incompatible
from services.engines.guarded import GuardedEngine, library_errors
from services.engines.request_check import Sizes
from services.engines.toolchain import missing_reason

if TYPE_CHECKING:
    import onnxruntime

TYPED_MODEL = "typed.onnx"
_ERRORS_ONLY = 3
# It moves a QuantizeLinear before a Reshape with an `output_dtype` of int8; on x86 the next
# one changes int8 to uint8, without that attribute, and the session refuses its own graph.
_DISABLED_OPTIMIZERS = ("QDQPropagationTransformer",)


class OnnxruntimeEngine(GuardedEngine):
    """One session; shapes are dynamic, so buckets do not bound it."""

    def __init__(self, spec: LoadSpec, session: "onnxruntime.InferenceSession") -> None:
        super().__init__(spec.manifest.inputs, spec.manifest.outputs)
        self._session: onnxruntime.InferenceSession | None = session

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
            return cls(spec, open_session(str(path), platform, spec.num_threads))

    def _compute(self, arrays: list[Array], sizes: Sizes) -> Sequence[Array]:
        assert self._session is not None
        feeds = {spec.name: array for spec, array in zip(self._inputs, arrays, strict=True)}
        results: list[Array] = self._session.run([spec.name for spec in self._outputs], feeds)
        return results

    def _release(self) -> None:
        self._session = None


def open_session(
    path: str, platform: Platform, num_threads: int = 0
) -> "onnxruntime.InferenceSession":
    """A deterministic session on the platform's provider; 0 threads leaves it to the library.

    Raises:
        RuntimeError: this build of ONNX Runtime has no provider for the platform.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.use_deterministic_compute = True
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    return onnxruntime.InferenceSession(
        path,
        options,
        providers=[provider_of(platform)],
        disabled_optimizers=list(_DISABLED_OPTIMIZERS),
    )


def provider_of(platform: Platform) -> str:
    """The execution provider of a platform.

    Raises:
        RuntimeError: it is not in this build. ONNX Runtime would only warn and use the CPU.
    """
    import onnxruntime

    name = "CUDAExecutionProvider" if platform is Platform.CUDA else "CPUExecutionProvider"
    available = onnxruntime.get_available_providers()
    if name not in available:
        raise RuntimeError(f"{name} wanted, this build has {', '.join(available)}")
    return name
