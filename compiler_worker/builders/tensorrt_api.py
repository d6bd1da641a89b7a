"""Everything in which tensorrt 10, tensorrt 11 and tensorrt_rtx differ when they build.

| | tensorrt 10 | tensorrt 11 | tensorrt_rtx |
|---|---|---|---|
| strongly typed network | by flag | always | by flag |
| target | the local device | the local device | a list of compute capabilities, on any machine |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compiler_worker.builders.hosts import local_generation
from services.contracts.errors import BuildError
from services.contracts.hardware.facts import Generation, Platform
from services.engines.device.toolchain import installed_version
from services.engines.tensorrt_runtime import (
    LIBRARIES,
    Messages,
    import_tensorrt,
    installed_libraries,
    logger_of,
)

_RTX = "tensorrt_rtx"
_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class TensorrtApi:
    """One installed library, ready to build for one generation."""

    library: str
    generation: Generation

    @property
    def is_ahead_of_time(self) -> bool:
        """Whether it builds for a device that this machine need not have."""
        return self.library == _RTX

    @property
    def version(self) -> str:
        """Version of the library."""
        return installed_version(self.library)

    def session(self, messages: Messages, options: Mapping[str, str]) -> "BuildSession":
        """Builder, empty strongly typed network, and configuration by a key's builder options."""
        trt = import_tensorrt(self.library)
        logger = logger_of(trt, messages)
        builder = trt.Builder(logger)
        config = builder.create_builder_config()
        # On by default: matrix products of an fp32 graph would keep 10 bits of each number.
        config.clear_flag(trt.BuilderFlag.TF32)
        if self.is_ahead_of_time:
            config.num_compute_capabilities = 1
            config.set_compute_capability(_capability(trt, self.generation), 0)
        if level := options.get("optimization_level"):
            config.builder_optimization_level = int(level)
        if workspace_gib := options.get("workspace_gib"):
            num_bytes = int(float(workspace_gib) * _GIB)
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, num_bytes)
        network = builder.create_network(network_flags(trt))
        return BuildSession(
            builder=builder,
            config=config,
            network=network,
            parser=trt.OnnxParser(network, logger),
        )


@dataclass(frozen=True, kw_only=True)
class BuildSession:
    """The library's objects for one build, kept alive together."""

    builder: Any
    config: Any
    network: Any
    parser: Any


def api_for(generation: Generation) -> TensorrtApi:
    """The library that can build for a generation here: TensorRT on the device, else RTX.

    Raises:
        BuildError: none can; the message has the reason.
    """
    if reason := unavailable_reason(generation):
        raise BuildError(f"no TensorRT for {generation}: {reason}")
    library = "tensorrt" if _is_local(generation) else _RTX
    return TensorrtApi(library=library, generation=generation)


def unavailable_reason(generation: Generation) -> str:
    """Why no installed TensorRT can build for a generation on this machine, or ""."""
    if generation.platform is not Platform.CUDA:
        return f"kind tensorrt is for GPUs, not for {generation}"
    installed = installed_libraries()
    if not installed:
        return f"neither of the Python packages {' and '.join(LIBRARIES)} is installed"
    if _is_local(generation):
        return ""
    if _RTX not in installed:
        return f"tensorrt builds for the local device only, which is {_local_text()}"
    if _capability(import_tensorrt(_RTX), generation) is None:
        return (
            f"tensorrt_rtx builds for {', '.join(_capabilities())} only; for {generation} the "
            f"package tensorrt on such a device is needed, this machine is {_local_text()}"
        )
    return ""


def _is_local(generation: Generation) -> bool:
    has_tensorrt = "tensorrt" in installed_libraries()
    return has_tensorrt and local_generation(Platform.CUDA) == generation


def _local_text() -> str:
    return str(local_generation(Platform.CUDA) or "without a CUDA device")


def _capability(trt: Any, generation: Generation) -> Any:
    """The enum member of a generation, None when the library does not know it."""
    return getattr(trt.ComputeCapability, f"SM{generation.major}{generation.minor}", None)


def _capabilities() -> list[str]:
    names = import_tensorrt(_RTX).ComputeCapability.__members__
    return [name for name in names if name.startswith("SM")]


def network_flags(trt: Any) -> int:
    """The flag by which a library makes a network strongly typed."""
    # Where the flag is gone, every network is strongly typed.
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)
