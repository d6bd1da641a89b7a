"""Run half of kind `inductor`: what Inductor compiled, loaded without a compiler.

An AOTInductor package on CPUs, a compiled artifact per bucket under a CUDA graph on GPUs;
both are a `Program` to this class.
"""

import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from services.contracts.hardware.facts import Platform
from services.contracts.hardware.kinds import EngineKind
from services.contracts.kserve.tensors import Array
from services.engines.base import LoadSpec
from services.engines.compatibility import refuse_incompatible
from services.engines.device.toolchain import missing_reason
from services.engines.guarded import GuardedEngine, library_errors
from services.engines.inductor.inductor_package import PACKAGE
from services.engines.request_check import Sizes

_CALL = re.compile(r"^ +(\w+\()?(kernels\.)?(cpp_|aoti_torch_(cpu|proxy_executor)_)\w+\(", re.M)


class Program(Protocol):
    """Compiled code that takes checked arrays, of any shape."""

    def run(self, arrays: list[Array], sizes: Sizes) -> Sequence[Array]:
        """Results in output order, owned by the caller; InvalidRequestError outside the buckets."""
        ...


class InductorEngine(GuardedEngine):
    """An engine of kernels that Inductor generated for one generation; arrays are of any shape."""

    name = "AOTInductor"

    def __init__(self, spec: LoadSpec, program: Program) -> None:
        super().__init__(spec.manifest.inputs, spec.manifest.outputs, spec.manifest.buckets)
        self._program: Program | None = program
        self._directory = spec.directory

    @classmethod
    def unavailable_reason(cls) -> str:
        """Why compiled torch code cannot run here, or ""."""
        return missing_reason("torch")

    @classmethod
    def load(cls, spec: LoadSpec) -> Self:
        """Load the package (CPU), or the artifacts with the master's weights (CUDA)."""
        # Before any of its bytes are loaded: code of another generation ends the process by SIGILL.
        refuse_incompatible(spec, EngineKind.INDUCTOR)
        with library_errors("Inductor's code failed to load"):
            return cls(spec, _program(spec))

    def num_kernels(self, _: Mapping[str, Array]) -> int:
        """Calls of generated kernels and of libraries, in the C++ code that a package keeps."""
        with zipfile.ZipFile(self._directory / PACKAGE) as package:
            (name,) = (each for each in package.namelist() if each.endswith(".wrapper.cpp"))
            code = package.read(name).decode()
        return len(_CALL.findall(code.partition("Model::run_impl(")[2]))

    def _compute(self, arrays: list[Array], sizes: Sizes) -> Sequence[Array]:
        assert self._program is not None
        return self._program.run(arrays, sizes)

    def _release(self) -> None:
        self._program = None


def _program(spec: LoadSpec) -> Program:
    if spec.device.parsed_generation.platform is Platform.CPU:
        from services.engines.inductor.inductor_package import PackageProgram

        return PackageProgram.load(spec)
    # Imported in the branches: each platform needs one of the two, and torch takes seconds.
    from services.engines.inductor.cuda_graph import capture_cuda_graph
    from services.engines.inductor.inductor_artifact import ArtifactProgram
    from services.engines.torch_runtime.full_precision import use_full_fp32

    # As in the proof; kernels of libraries that Inductor calls look at the switch when they run.
    use_full_fp32()
    return ArtifactProgram.load(spec, device="cuda", capture=capture_cuda_graph)
