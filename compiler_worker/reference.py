"""What an engine is compared with: the master in float64, witnessed by ONNX Runtime.

The float64 run goes through our own importer, so a fault of the importer would stand in
the reference and in every engine compiled from the same import. ONNX Runtime, which shares
no code with it, must therefore agree before the reference is believed.

A master that the importer refuses (trees, for one) is compared with ONNX Runtime, and engines
of ONNX Runtime itself with ONNX's own reference implementation: never with their own library.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata
from pathlib import Path

from compiler_worker.comparison import compare_output
from compiler_worker.distance import Distance
from compiler_worker.models import EvaluatorModel, FxModel, Model, OrtModel
from compiler_worker.reference_cache import CachedModel, reference_folder
from compiler_worker.sampling import Sample
from compiler_worker.tolerances import tolerance_for
from services.contracts.errors import ProofError, UnsupportedGraphError
from services.contracts.kinds import EngineKind, Precision
from services.contracts.manifest import MasterRecord
from services.contracts.recipe import Recipe, Tolerance
from services.engines.toolchain import installed_version

_ANY_DISTANCE = Tolerance(rel_l2=math.inf, max_abs=math.inf, cosine_distance=math.inf)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An opened reference.

    Attributes:
        name: what it is, in the words that a proof records.
        model: computes the outputs that engines are compared with, or reads them from disk.
        witness: independent of `model`; None when there is none.
        baseline: what engines are timed against: the eager float32 fx graph, or unoptimised
            ONNX Runtime when the importer refuses the graph.
        eager_outputs: outputs of the eager graph, kept on disk; None when there is none.
    """

    name: str
    model: Model
    witness: Model | None
    baseline: Model
    eager_outputs: Model | None


def open_eager(master_path: Path, master: MasterRecord, device: str) -> FxModel | str:
    """The eager float32 graph, or why the importer has none."""
    try:
        return FxModel.open(master_path, master, device=device)
    except UnsupportedGraphError as error:
        return str(error)


def open_reference(
    master_path: Path,
    master: MasterRecord,
    eager: FxModel | str,
    cache_dir: Path,
    *,
    kind: EngineKind | None = None,
    device: str = "cpu",
    num_threads: int = 0,
) -> Reference:
    """Open the best reference that this master has for engines of a kind.

    Args:
        master_path: the master's `model.onnx`.
        master: its record.
        eager: what `open_eager` gave for this master and `device`.
        cache_dir: where outputs are kept between proofs.
        kind: of the engine, which is not compared with the library that runs it.
        device: torch device of the eager graph; the reference itself always runs on the CPU.
        num_threads: threads of the witness; 0 leaves it to the library.

    Raises:
        ProofError: nothing but the engine's own library can run the master.
    """
    keep = partial(_kept, master, cache_dir)
    ort_name = f"onnxruntime {installed_version('onnxruntime')} fp32"
    witness, refusal = _opened_witness(
        partial(OrtModel.open, master_path, master, num_threads=num_threads)
    )
    if isinstance(eager, FxModel):
        torch_name = f"torch {installed_version('torch')}"
        open_double = partial(FxModel.open, master_path, master, device="cpu", is_double=True)
        return Reference(
            name=f"float64 import, {torch_name}; {refusal or f'witness {ort_name}'}",
            model=keep(f"float64 {torch_name} {importer_digest()}", open_double),
            witness=keep(ort_name, lambda: witness) if witness else None,
            baseline=eager,
            eager_outputs=keep(f"fp32 {torch_name} {importer_digest()} {device}", lambda: eager),
        )
    if witness is None:
        raise ProofError(f"no reference can run this master: {eager}; {refusal}")
    name, model = ort_name, keep(ort_name, lambda: witness)
    if kind is EngineKind.ONNXRUNTIME:
        name = f"onnx.reference {metadata.version('onnx')} fp32"
        evaluator = _opened_evaluator(master_path, master, eager)
        model = keep(name, lambda: evaluator)
    return Reference(
        name=f"{name}; no float64 import: {eager}",
        model=model,
        witness=None,
        baseline=witness,
        eager_outputs=None,
    )


def _opened_evaluator(master_path: Path, master: MasterRecord, refusal: str) -> EvaluatorModel:
    try:
        return EvaluatorModel.open(master_path, master)
    except ProofError as error:
        raise ProofError(
            f"no reference but ONNX Runtime itself can run this master: {refusal}; {error}"
        ) from error


def _opened_witness(open_ort: Callable[[], OrtModel]) -> tuple[OrtModel | None, str]:
    try:
        return open_ort(), ""
    except ProofError as error:
        return None, f"no witness: {error}"


@cache
def importer_digest() -> str:
    """Digest of the importer's own text: what it computed before a mend is no reference after."""
    hasher = hashlib.sha256()
    for path in sorted((Path(__file__).parent / "onnx_to_fx").rglob("*.py")):
        hasher.update(path.read_bytes())
    return hasher.hexdigest()


def _kept(
    master: MasterRecord, cache_dir: Path, name: str, open_model: Callable[[], Model]
) -> CachedModel:
    return CachedModel(f"{master.digest} {name}", open_model, reference_folder(cache_dir))


def eager_errors(
    reference: Reference, master: MasterRecord, recipe: Recipe, samples: Iterable[Sample]
) -> dict[str, Distance]:
    """The distance of eager float32 to the reference, by output; empty without an import."""
    if reference.eager_outputs is None:
        return {}
    largest: dict[str, Distance] = {}
    for sample in samples:
        found = reference.eager_outputs.run(sample.inputs)
        wanted = reference.model.run(sample.inputs)
        for spec in master.outputs:
            result = compare_output(spec, recipe, sample.inputs, found, wanted, _ANY_DISTANCE)
            largest[spec.name] = largest.get(spec.name, Distance()).union(result.distance)
    return largest


def require_agreement(
    reference: Reference,
    master: MasterRecord,
    recipe: Recipe,
    samples: Iterable[Sample],
    errors: Mapping[str, Distance],
) -> None:
    """Refuse a reference that its witness contradicts.

    Raises:
        ProofError: names output, sizes, what was found and what is allowed.
    """
    if reference.witness is None:
        return
    for sample in samples:
        found, wanted = (m.run(sample.inputs) for m in (reference.witness, reference.model))
        for spec in master.outputs:
            # Not the recipe's tolerance: that is for engines, which may be meant to differ.
            allowed = tolerance_for(Precision.FP32, Recipe(), errors.get(spec.name))
            result = compare_output(spec, recipe, sample.inputs, found, wanted, allowed)
            if result.fault:
                raise ProofError(
                    f"the reference itself is refused ({reference.name}): the witness differs in "
                    f"output '{spec.name}' at {sample.sizes}: {result.fault}"
                )
