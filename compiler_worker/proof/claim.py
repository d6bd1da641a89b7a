"""What an engine claims to be, and the result of its proof."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compiler_worker.inputs.sampling import DEFAULT_SEED
from compiler_worker.proof.worst_sample import WorstSample
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord, OutputCheck, TaskCheck
from services.contracts.model.recipe import Bucket, Recipe
from services.contracts.selection.proof_checks import AgreementCheck, ColumnCheck, PowerCheck

# A broken engine is so at most samples. The record has every check; this is the short text.
_MAX_FAULTS_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What an engine claims to be: this master, in this precision, over these buckets.

    Attributes:
        samples: real inputs, compared beside those that are drawn; None when there are none.
        held_out: samples of traffic, of a calibrated engine; compared in the same way.
        seed: sizes and values that this engine alone is compared at are drawn from it.
        master_path: the master's file, whose graph has the values that ids are made of.
    """

    master: MasterRecord
    recipe: Recipe
    precision: Precision
    buckets: tuple[Bucket, ...]
    samples: Mapping[str, Array] | None = None
    held_out: Mapping[str, Array] | None = None
    # Not the seed of the draws that all engines of a master share: those would only be drawn twice.
    seed: int = DEFAULT_SEED + 1
    master_path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ProofVerdict:
    """Outcome of all comparisons.

    Attributes:
        reason: the first faults in words, "" when there are none.
        reference: what it was compared with, in words.
        worst: the worst sample that was met; None when nothing was compared.
        samples: how many were compared, by variant.
        notes: what was not compared, or not drawn, and why.
    """

    reason: str
    reference: str = ""
    samples: Mapping[str, int] = field(default_factory=dict)
    checks: tuple[OutputCheck, ...] = ()
    tasks: tuple[TaskCheck, ...] = ()
    columns: tuple[ColumnCheck, ...] = ()
    agreements: tuple[AgreementCheck, ...] = ()
    power: tuple[PowerCheck, ...] = ()
    worst: WorstSample | None = None
    notes: tuple[str, ...] = ()


def reason_of(
    checks: Sequence[OutputCheck],
    together: Sequence[ColumnCheck | AgreementCheck],
    tasks: Sequence[TaskCheck],
) -> str:
    """The first faults in words, "" when there are none.

    Args:
        checks: of each output at each sample.
        together: of each output over all samples.
        tasks: of the recipe.
    """
    faults = [
        f"output '{c.output}', bucket {c.bucket} at {sizes_text(c.sizes)}: {c.fault}"
        for c in checks
        if c.fault
    ]
    faults += [f"output '{c.output}', all samples: {c.fault}" for c in together if c.fault]
    faults += [
        f"task {t.name}: {t.value:.4f} found, {t.bound:.4f} wanted ({t.detail})"
        for t in tasks
        if not t.is_passed
    ]
    more = len(faults) - _MAX_FAULTS_SHOWN
    shown = faults[:_MAX_FAULTS_SHOWN] + ([f"and {more} more"] if more > 0 else [])
    return "; ".join(shown)


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Sizes in words."""
    return " ".join(f"{name}={size}" for name, size in sorted(sizes.items())) or "its fixed shape"
