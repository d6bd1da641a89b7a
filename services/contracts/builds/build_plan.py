"""What is to be built for one class of nodes, and what became of the attempts.

plans/<model>/<version>/<node class digest>/<n>.json   BuildPlan; the newest counts
rebuilds/<model>/<n>.json                              RebuildRequest
tasks/<name>/started.json, tasks/<name>/ended.json     TaskStart, TaskEnd

A plan is made by the compiler on a node of its class, because only there is it known what can
be built; the controller reads it. Nothing here is ever overwritten.
"""

from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.document import Document
from services.contracts.model.manifest import Proof, ProofOutcome


class PlannedKey(Document):
    """One engine that a class of nodes should have.

    Attributes:
        is_anywhere: it can be built ahead of time, without a device of its generation.
    """

    key: BuildKey
    is_anywhere: bool = False

    @property
    def digest(self) -> str:
        """The engine's name in the store."""
        return self.key.digest()

    @property
    def words(self) -> str:
        """Kind and precision, for people."""
        return f"{self.key.kind} {self.key.precision}"


class SkippedKey(Document):
    """A combination that is not built for this class, and why."""

    kind: str
    precision: str
    reason: str


class BuildPlan(Document):
    """All combinations of one model version for one class of nodes.

    Attributes:
        node_class: of the node that made the plan; only a generation when none was there.
        facts: the device it was made on; None for a plan made elsewhere, ahead of time.
        compiler: what its launcher called the compiler that made it; "" when unknown.
        proof_code: digest of the code that proves engines where the plan was made; "" in older
            plans. What other code proved is proven again there, and serves meanwhile.
        planned: in the order in which they are built.
        created_at: ISO 8601, UTC.
    """

    model: str
    version: int
    node_class: NodeClass
    facts: DeviceFacts | None = None
    compiler: str = ""
    proof_code: str = ""
    planned: tuple[PlannedKey, ...] = ()
    skipped: tuple[SkippedKey, ...] = ()
    created_at: str

    def is_equal_plan(self, other: "BuildPlan") -> bool:
        """Whether the other is equal, but for its time."""
        return self.model_copy(update={"created_at": other.created_at}) == other


class RebuildRequest(Document):
    """What `smelt rebuild` asks for: it pins what it saw, so that no clock decides.

    A published engine is never overwritten: its key names everything that changes its bytes,
    so building it again could give no other one. It is proven again instead; what failed is
    tried again.

    Attributes:
        generation: only keys of this one; "" means all.
        disregarded: for each key, how many of its build records no longer count.
        reprove: for each engine, the `created_at` of the proof that is to be replaced.
        who, why: for the event.
    """

    model: str
    version: int
    generation: str = ""
    disregarded: dict[str, int] = {}
    reprove: dict[str, str] = {}
    who: str
    why: str = ""
    created_at: str


class TaskSpec(Document):
    """What one run of `python -m compiler_worker build` is to do, on one class of nodes.

    Attributes:
        name: deterministic from what is to be done, so that launching twice is harmless:
            at most 52 of a-z 0-9 -, a letter first.
        node_class: where it must run.
        is_anywhere: no device of the class is needed (built ahead of time): any node will do.
        key_digests: build only these keys; empty builds and proves all that is missing.
        attempt: from 1; part of the name.
        reason: why, for people.
    """

    name: str
    model: str
    version: int
    node_class: NodeClass
    is_anywhere: bool
    key_digests: tuple[str, ...] = ()
    attempt: int = 1
    reason: str = ""


class TaskStart(TaskSpec):
    """A build task that was launched, and what the store held then.

    Attributes:
        num_records: build records of each of its keys before it.
        proofs: `created_at` of the newest proof of each of these that is published.
    """

    num_records: dict[str, int] = {}
    proofs: dict[str, str] = {}
    created_at: str


class TaskEnd(Document):
    """A build task that ended before there was a plan, or was lost; all others have records.

    Attributes:
        name: of the task, with `-lost` for the first node that it lost, which ends no attempt.
        detail: its last output.
        run: which run of that name; "" when it does not matter.
    """

    name: str
    detail: str
    run: str = ""
    created_at: str


def is_of_other_code(proof: Proof, code: str) -> bool:
    """Whether a verdict is of other code than `code`; "" is of a compiler that names none."""
    return proof.outcome is not ProofOutcome.NOT_RUN and bool(code) and proof.code != code
