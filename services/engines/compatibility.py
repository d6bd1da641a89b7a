"""The one check that every engine passes before any of its bytes are read.

Engines of the wrong generation do not always refuse themselves: CPU code ends with SIGILL,
a CUDA library may leak device memory while failing. So found and wanted are compared here
first, from the manifest alone.
"""

from services.contracts.builds.build_key import BuildKey
from services.contracts.errors import EngineIncompatibleError
from services.contracts.hardware.facts import DeviceFacts, Generation
from services.contracts.hardware.kinds import EngineKind
from services.engines.base import LoadSpec

# Enough for people to find the engine by, in a message of one line.
SHORT_DIGEST = 12


def refuse_incompatible(spec: LoadSpec, kind: EngineKind) -> None:
    """Raise EngineIncompatibleError unless kind, generation and library versions fit."""
    key = spec.manifest.key
    fault = _fault(key, spec.device, kind)
    if fault:
        raise EngineIncompatibleError(
            f"engine {key.digest()[:SHORT_DIGEST]} of kind {key.kind} {fault}; build it: "
            f"smelt build MODEL --generation {spec.device.generation}{_kind_option(key, spec)}"
        )


def _kind_option(key: BuildKey, spec: LoadSpec) -> str:
    """The same kind again, unless it has nothing for this platform."""
    built_for = Generation.parse(key.generation).platform
    is_same_platform = built_for is spec.device.parsed_generation.platform
    return f" --kind {key.kind}" if is_same_platform else ""


def _fault(key: BuildKey, device: DeviceFacts, kind: EngineKind) -> str:
    # The coarsest difference first: behind it the finer ones are of no use to the reader.
    if key.kind is not kind:
        return f"was given to the loader of kind {kind}"
    if not Generation.parse(key.generation).runs_on(device.parsed_generation):
        return f"was built for {key.generation}, this device is {device.generation}"
    return _toolchain_fault(key, device)


def _toolchain_fault(key: BuildKey, device: DeviceFacts) -> str:
    # Only libraries that the key names: others do not change what was compiled.
    faults = [
        f"{library} {wanted}, this device has {device.toolchain.get(library, 'none')}"
        for library, wanted in sorted(key.toolchain.items())
        if device.toolchain.get(library) != wanted
    ]
    return f"was built with {'; '.join(faults)}" if faults else ""
