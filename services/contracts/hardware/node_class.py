"""What kind of node a node is: the part of its device facts that decides which engines it needs.

Nodes publish it as labels (Ray's, which Kubernetes' syntax also admits), so that the control
plane knows the fleet without running anything on it. A field that a source cannot know is
empty: GPU Feature Discovery knows a driver and no toolchain.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Self

from services.contracts.builds.code_digest import compiler_code
from services.contracts.hardware.facts import DeviceFacts, Generation
from services.contracts.hardware.labels import GENERATION_LABEL, PREFIX
from services.contracts.model.document import Document, canonical_json

_TOOLCHAIN_DIGITS = 16
# No library is called so.
_CODE_NAME = "smelt build code"
_LABEL_LENGTH = 63
_NOT_IN_LABEL = re.compile(r"[^A-Za-z0-9._-]+")


class NodeClass(Document):
    """Nodes of one class run the same engines.

    Attributes:
        generation: the text form of a Generation.
        device: product name, as far as a label can hold it.
        memory_gib: device memory; 0 when unknown.
        driver: CUDA driver version; "" for a CPU or when unknown.
        toolchain: first digits of the digest of the library versions and of Smelt's own code; ""
            when unknown.
    """

    generation: str
    device: str = ""
    memory_gib: int = 0
    driver: str = ""
    toolchain: str = ""

    @classmethod
    def from_facts(cls, facts: DeviceFacts) -> Self:
        """The class of a probed node; all fields are known."""
        return cls(
            generation=facts.generation,
            device=_label_value(facts.name),
            memory_gib=facts.memory_gib,
            driver=_label_value(facts.driver),
            toolchain=toolchain_digest(facts.toolchain),
        )

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Self | None:
        """The class that a node's labels name; None when they name none.

        Raises:
            InvalidRequestError: the generation's label is no generation.
        """
        generation = labels.get(GENERATION_LABEL, "")
        if not generation:
            return None
        memory = labels.get(f"{PREFIX}memory-gib", "")
        return cls(
            generation=str(Generation.parse(generation)),
            device=labels.get(f"{PREFIX}device", ""),
            memory_gib=int(memory) if memory.isdecimal() else 0,
            driver=labels.get(f"{PREFIX}driver", ""),
            toolchain=labels.get(f"{PREFIX}toolchain", ""),
        )

    def labels(self) -> dict[str, str]:
        """What a node of this class publishes; unknown fields are left out."""
        values = {
            "generation": self.generation,
            "device": self.device,
            "memory-gib": str(self.memory_gib or ""),
            "driver": self.driver,
            "toolchain": self.toolchain,
        }
        return {f"{PREFIX}{name}": value for name, value in values.items() if value}

    def may_be(self, known: "NodeClass") -> bool:
        """Whether nothing that is known of both differs: what serves `known` serves this."""
        mine = self.model_dump()
        others = known.model_dump()
        return all(
            not mine[name] or not others[name] or mine[name] == others[name] for name in mine
        )

    def digest(self) -> str:
        """Full sha256 of the canonical JSON."""
        return hashlib.sha256(self.canonical_json()).hexdigest()


def toolchain_digest(toolchain: Mapping[str, str]) -> str:
    """What engines are made with, in a few hex digits; equal versions, equal digits.

    Smelt's own code that makes and proves engines is a part of it: a node that was upgraded is one
    of another class, for which plans are made and engines built without anybody asking.
    """
    makers = dict(toolchain) | {_CODE_NAME: compiler_code()}
    return hashlib.sha256(canonical_json(makers)).hexdigest()[:_TOOLCHAIN_DIGITS]


def _label_value(text: str) -> str:
    """What both Ray and Kubernetes take as a label's value, nearest to the text."""
    return _NOT_IN_LABEL.sub("-", text)[:_LABEL_LENGTH].strip("-._")
