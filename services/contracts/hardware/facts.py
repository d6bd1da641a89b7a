"""What an engine is compiled for: GPU and CPU generations, and the facts of one device.

A generation is written `cuda-sm90` or `cpu-x86_64-avx512_bf16`. It comes from the
device itself (compute capability, cpuid flags), never from a product name.
"""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Self

from services.contracts.errors import InvalidRequestError
from services.contracts.model.document import Document
from services.contracts.text.nearest import nearest

# Each class needs every flag of its own row and of the rows above it. Flag names are those
# of /proc/cpuinfo. What the classes are for: v3 runs fp32, VNNI makes int8 worth it,
# AVX512_BF16 and AMX make bf16 worth it.
X86_ISA_FLAGS: dict[str, frozenset[str]] = {
    "v2": frozenset({"sse4_2", "ssse3", "popcnt"}),
    "v3": frozenset({"avx2", "fma", "bmi2", "f16c"}),
    "avx512": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"}),
    "avx512_vnni": frozenset({"avx512_vnni"}),
    "avx512_bf16": frozenset({"avx512_bf16"}),
    "amx": frozenset({"amx_tile", "amx_bf16", "amx_int8"}),
}
_X86_ISA_RANK = {isa: rank for rank, isa in enumerate(X86_ISA_FLAGS)}
_CUDA = re.compile(r"cuda-sm([1-9][0-9]*)([0-9])")
# Of any release.
_GENERATION_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_CPU = re.compile(r"cpu-([a-z0-9_]+?)-([a-z0-9_]+)")


class Platform(StrEnum):
    """The kind of device behind a generation."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One hardware generation.

    Attributes:
        platform: cuda or cpu.
        major, minor: compute capability for cuda, 0 for cpu.
        machine, isa: `x86_64` and an ISA class for cpu, "" for cuda.
    """

    platform: Platform
    major: int = 0
    minor: int = 0
    machine: str = ""
    isa: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `cuda-sm120` or `cpu-x86_64-v3`; raises InvalidRequestError."""
        if match := _CUDA.fullmatch(text):
            # The minor number is the last digit: sm103 is 10.3, sm75 is 7.5.
            return cls(platform=Platform.CUDA, major=int(match[1]), minor=int(match[2]))
        if text.startswith("cpu-x86_64-"):
            isa = text.removeprefix("cpu-x86_64-")
            if isa in _X86_ISA_RANK:
                return cls(platform=Platform.CPU, machine="x86_64", isa=isa)
        elif match := _CPU.fullmatch(text):
            return cls(platform=Platform.CPU, machine=match[1], isa=match[2])
        known = [f"cpu-x86_64-{isa}" for isa in _X86_ISA_RANK]
        raise InvalidRequestError(
            f"generation '{text}'{nearest(text, known)}: expected cuda-sm<major><minor>, "
            f"for example cuda-sm90, or cpu-x86_64-<class> with one of {', '.join(_X86_ISA_RANK)}"
        )

    def __str__(self) -> str:
        """The form that `parse` reads."""
        if self.platform is Platform.CUDA:
            return f"cuda-sm{self.major}{self.minor}"
        return f"cpu-{self.machine}-{self.isa}"

    def runs_on(self, node: "Generation") -> bool:
        """Whether code compiled for this generation may run on a node of the other.

        Equal for CUDA (machine code of one SM is not the code of another); on x86 a node
        also runs every lower ISA class.
        """
        if self == node:
            return True
        is_x86_pair = self.platform is Platform.CPU and self.machine == node.machine == "x86_64"
        return is_x86_pair and _X86_ISA_RANK[self.isa] <= _X86_ISA_RANK[node.isa]


def x86_isa_class(flags: frozenset[str]) -> str:
    """The highest ISA class whose flags, and those of every class below, are present.

    Raises:
        InvalidRequestError: the processor is older than x86-64-v2.
    """
    best = ""
    for isa, needed in X86_ISA_FLAGS.items():
        if not needed <= flags:
            break
        best = isa
    if not best:
        raise InvalidRequestError("processor lacks SSE4.2: Smelt needs x86-64-v2 or newer")
    return best


class DeviceFacts(Document):
    """What is true of one device and the software that drives it.

    Attributes:
        generation: the text form of its Generation.
        name: product name as the driver gives it; never used to derive the generation.
        memory_gib: device memory, whole GiB; host memory for a CPU.
        driver: CUDA driver version, "" for a CPU.
        toolchain: version by library that loads engines here (torch, tensorrt_rtx, ...).
    """

    generation: str
    name: str
    memory_gib: int
    driver: str = ""
    toolchain: dict[str, str] = {}

    @property
    def parsed_generation(self) -> Generation:
        """The generation as a value."""
        return Generation.parse(self.generation)


# All replicas are asked for it at each look at a fleet, and say the same as before.
@lru_cache(64)
def generation_named(device_facts_json: bytes) -> str:
    """The generation that a device's facts name; "" for none, and for what cannot be read.

    Facts of another release may hold fields that this one does not know: code that only shows or
    counts where a replica is must not fail on them, whatever bytes a replica sends.
    """
    try:
        facts = json.loads(device_facts_json or b"{}")
    except (ValueError, RecursionError):  # the latter for arrays in arrays in arrays
        return ""
    named = facts.get("generation") if isinstance(facts, dict) else None
    # It becomes a label of metrics.
    return named if isinstance(named, str) and _GENERATION_NAME.fullmatch(named) else ""
