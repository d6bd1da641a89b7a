"""Run half of kind `tensorrt`: a plan of TensorRT or TensorRT-RTX, one profile per bucket.

Buffers are torch tensors, so this process has one CUDA allocator and one stream order.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from services.contracts.errors import EngineError
from services.contracts.hardware.kinds import EngineKind
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.engines.base import LoadSpec
from services.engines.compatibility import refuse_incompatible
from services.engines.device.cuda_driver import first_cuda_device
from services.engines.device.toolchain import missing_reason
from services.engines.guarded import GuardedEngine, library_errors
from services.engines.request_check import Sizes
from services.engines.shapes import smallest_holding
from services.engines.tensorrt_runtime import (
    LIBRARIES,
    Messages,
    import_tensorrt,
    installed_libraries,
    logger_of,
)

if TYPE_CHECKING:
    import torch

PLAN = "engine.plan"


class TensorrtEngine(GuardedEngine):
    """A deserialised plan with one execution context per optimization profile."""

    name = "TensorRT"

    def __init__(self, spec: LoadSpec, plan: Any, logger: Any) -> None:
        """Make a context for each profile.

        Args:
            spec: names and types of inputs and outputs, and the buckets of the profiles.
            plan: deserialised.
            logger: of the plan's library; it has why a call failed.
        """
        super().__init__(spec.manifest.inputs, spec.manifest.outputs, spec.manifest.buckets)
        self._buckets = spec.manifest.buckets
        self._plan = plan
        self._logger = logger
        # One per profile: a switch would be work on the stream in front of a request.
        self._contexts = [_context_of(plan, index) for index in range(len(self._buckets))]
        self._check_datatypes()

    @classmethod
    def unavailable_reason(cls) -> str:
        """Why plans cannot run here, or ""."""
        if not installed_libraries():
            return f"neither of the Python packages {' and '.join(LIBRARIES)} is installed"
        if first_cuda_device() is None:
            return "no CUDA device"
        return missing_reason("torch")

    @classmethod
    def load(cls, spec: LoadSpec) -> Self:
        """Deserialise the plan, after its generation and library version were compared.

        Raises:
            EngineIncompatibleError: the plan is for another generation or library version.
            EngineError: TensorRT is not usable here, or does not deserialise the plan.
        """
        refuse_incompatible(spec, EngineKind.TENSORRT)
        if reason := cls.unavailable_reason():
            raise EngineError(f"a tensorrt engine cannot be loaded here: {reason}")
        with library_errors("TensorRT failed to load the engine"):
            return cls(spec, *_deserialised(spec))

    def _compute(self, arrays: list[Array], sizes: Sizes) -> Sequence[Array]:
        import torch

        from services.engines.torch_runtime.torch_arrays import array_from_tensor, tensor_from_array

        context = self._contexts[smallest_holding(self._buckets, sizes)]
        inputs = [tensor_from_array(array).cuda() for array in arrays]
        for spec, tensor in zip(self._inputs, inputs, strict=True):
            self._require("set_input_shape", context, spec.name, tuple(tensor.shape))
            self._require("set_tensor_address", context, spec.name, tensor.data_ptr())
        outputs = self._output_buffers(context)
        stream = torch.cuda.current_stream()
        self._require("execute_async_v3", context, stream.cuda_stream)
        # The input tensors must be kept until the kernels that read them have run.
        stream.synchronize()
        return [array_from_tensor(tensor) for tensor in outputs]

    def _require(self, step: str, context: Any, *args: object) -> None:
        if not getattr(context, step)(*args):
            # Those of now: the library has one logger, for all engines.
            words = self._logger.messages.take_errors()
            raise EngineError(f"TensorRT failed to run: {step} returned false: {words}")

    def _output_buffers(self, context: Any) -> "list[torch.Tensor]":
        import torch

        from services.engines.torch_runtime.torch_arrays import torch_dtype

        buffers = []
        for spec in self._outputs:
            shape = tuple(context.get_tensor_shape(spec.name))
            # -1 is known after the run alone, when its memory has to be there already.
            if any(size < 0 for size in shape):
                raise EngineError(f"the shape of output '{spec.name}' depends on data: {shape}")
            # TensorRT takes no null pointer for an output, not even for an empty one.
            num_elements = math.prod(shape)
            memory = torch.empty(
                max(num_elements, 1), dtype=torch_dtype(spec.datatype), device="cuda"
            )
            self._require("set_tensor_address", context, spec.name, memory.data_ptr())
            buffers.append(memory[:num_elements].view(shape))
        return buffers

    def _check_datatypes(self) -> None:
        """Refuse a plan whose tensors are not the model's: buffers would have a wrong size."""
        for spec in (*self._inputs, *self._outputs):
            found = self._plan.get_tensor_dtype(spec.name).itemsize
            wanted = NUMPY_FROM_DATATYPE[spec.datatype].itemsize
            if found != wanted:
                raise EngineError(
                    f"tensor '{spec.name}' has {found} bytes per element in the plan, "
                    f"{spec.datatype} has {wanted}"
                )

    def _release(self) -> None:
        # Contexts hold device memory of the plan and go first.
        self._contexts.clear()
        self._plan = None


def _deserialised(spec: LoadSpec) -> tuple[Any, Any]:
    # The version of the library that built the plan was checked, so it is the one installed.
    library = next(name for name in LIBRARIES if name in spec.manifest.key.toolchain)
    trt = import_tensorrt(library)
    messages = Messages()
    logger = logger_of(trt, messages)
    runtime = trt.Runtime(logger)
    plan = runtime.deserialize_cuda_engine((spec.directory / PLAN).read_bytes())
    if plan is None:
        raise EngineError(f"{library} refused the plan: {messages.take_errors()}")
    return plan, logger


def _context_of(plan: Any, profile: int) -> Any:
    import torch

    context = plan.create_execution_context()
    if context is None:
        raise EngineError("TensorRT made no execution context: out of device memory?")
    context.set_optimization_profile_async(profile, torch.cuda.current_stream().cuda_stream)
    return context
