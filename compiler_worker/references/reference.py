"""What an engine is compared with: the master in float64, witnessed by ONNX Runtime.

The float64 run goes through our own importer, so a fault of the importer would stand in
the reference and in every engine compiled from the same import. ONNX Runtime, which shares
no code with it, must therefore agree before the reference is used; where it refuses the
master (an opset that it does not have yet), ONNX's own reference implementation must. Which is
wrong where they differ is found in `blame`.

A master that the importer refuses (trees, for one) is compared with ONNX Runtime, and engines
of ONNX Runtime itself with ONNX's own reference implementation: never with their own library.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from compiler_worker.references.models import EvaluatorModel, FxModel, Model, OrtModel
from compiler_worker.references.reference_cache import CachedModel, reference_folder
from services.contracts.builds.code_digest import code_digest
from services.contracts.errors import ProofError, UnsupportedGraphError
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import MasterRecord
from services.engines.device.toolchain import installed_version

_M = TypeVar("_M", bound=Model)
# Of a step: biases in steps of their products move values by 2e-3, sums in another order by less.
_SHIFTS = (0.01, -0.01)


@dataclass(frozen=True, kw_only=True)
class TieBreaker:
    """What is left where a reference and its witness contradict each other.

    Attributes:
        master_path: the master's `model.onnx`.
        is_imported: whether engines of the kind in question are made by the importer too.
        open_third: ONNX's own reference implementation.
        open_values: the float64 import with values of the graph as its outputs.
        without_import: the reference that a master has without an import, for a reason.
    """

    master_path: Path
    is_imported: bool
    open_third: Callable[[], EvaluatorModel]
    open_values: Callable[[Sequence[str]], Model]
    without_import: Callable[[str], "Reference"]


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
        shifted: outputs of the eager graph with the master's own roundings shifted, up and down;
            empty where it has none.
        witness_name: of the library that the witness runs in, and its version.
        tie_breaker: what is used where the witness contradicts; None when there is none.
    """

    name: str
    model: Model
    witness: Model | None
    baseline: Model
    eager_outputs: Model | None
    shifted: tuple[Model, ...] = ()
    witness_name: str = ""
    tie_breaker: TieBreaker | None = None


def open_eager(master_path: Path, master: MasterRecord, device: str) -> FxModel | str:
    """The eager float32 graph, or why the importer has none.

    Args:
        master_path: the master's `model.onnx`.
        master: names inputs and outputs.
        device: of torch, `cpu` or `cuda`.
    """
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
    if isinstance(eager, str):
        return _without_import(master_path, master, eager, cache_dir, kind, num_threads)

    def without_import(reason: str) -> Reference:
        found = _without_import(master_path, master, reason, cache_dir, kind, num_threads)
        return _doubled(found, master_path, master, cache_dir, kind)

    keep = partial(_kept, master, cache_dir)
    witness: Model | None
    witness, refusal = _opened(partial(OrtModel.open, master_path, master, num_threads=num_threads))
    witness_name = ort_name()
    tie_breaker = _tie_breaker(master_path, master, kind, without_import) if witness else None
    if not witness:
        witness, none = _opened(partial(EvaluatorModel.open, master_path, master))
        witness_name = evaluator_name()
        refusal = "; ".join(filter(None, (refusal, none)))
    torch_name = f"torch {installed_version('torch')}"
    words = f"witness {witness_name}" if witness else "no witness"
    open_double = partial(FxModel.open, master_path, master, device="cpu", is_double=True)
    eager_name = f"fp32 {torch_name} {device}"
    return Reference(
        name=f"float64 import, {torch_name}; {': '.join(filter(None, (words, refusal)))}",
        model=keep(f"float64 {torch_name}", open_double),
        witness=keep(witness_name, lambda: witness) if witness else None,
        baseline=eager,
        eager_outputs=keep(eager_name, lambda: eager),
        shifted=_shifted(
            eager, lambda shift, run: keep(f"{eager_name} with roundings shifted by {shift}", run)
        ),
        witness_name=witness_name if witness else "",
        tie_breaker=tie_breaker,
    )


def _tie_breaker(
    master_path: Path,
    master: MasterRecord,
    kind: EngineKind | None,
    without_import: Callable[[str], Reference],
) -> TieBreaker:
    return TieBreaker(
        master_path=master_path,
        is_imported=kind is not None and kind.is_imported,
        open_third=partial(EvaluatorModel.open, master_path, master),
        open_values=partial(FxModel.of_values, master_path, master),
        without_import=without_import,
    )


def _shifted(
    eager: FxModel, keep: Callable[[float, Callable[[], Model]], Model]
) -> tuple[Model, ...]:
    shifts = _SHIFTS if eager.quantises_values else ()
    return tuple(keep(shift, partial(eager.shifted, shift)) for shift in shifts)


def _without_import(
    master_path: Path,
    master: MasterRecord,
    reason: str,
    cache_dir: Path,
    kind: EngineKind | None,
    num_threads: int,
) -> Reference:
    keep = partial(_kept, master, cache_dir)
    witness, refusal = _opened(partial(OrtModel.open, master_path, master, num_threads=num_threads))
    if witness is None:
        raise ProofError(f"no reference can run this master: {reason}; {refusal}")
    name = ort_name()
    model = keep(ort_name(), lambda: witness)
    if kind is EngineKind.ONNXRUNTIME:
        name = evaluator_name()
        # Now, although the cache opens its models late: a refusal must come before the first
        # sample.
        try:
            evaluator = EvaluatorModel.open(master_path, master)
        except ProofError as error:
            raise ProofError(
                f"no reference but ONNX Runtime itself can run this master: {reason}; {error}"
            ) from error
        model = keep(name, lambda: evaluator)
    return Reference(
        name=f"{name}; no float64 import: {reason}",
        model=model,
        witness=None,
        baseline=witness,
        eager_outputs=None,
    )


def _doubled(
    reference: Reference,
    master_path: Path,
    master: MasterRecord,
    cache_dir: Path,
    kind: EngineKind | None,
) -> Reference:
    """The same reference in float64, where its library has the kernels."""
    open_model: Callable[..., Model] = OrtModel.open
    if kind is EngineKind.ONNXRUNTIME:
        open_model = EvaluatorModel.open
    model, _ = _opened(partial(open_model, master_path, master, is_double=True))
    if model is None:
        return reference
    name = reference.name.replace(" fp32", " fp64", 1)
    # Without the reason behind it, which changes no output: entries are shared between proofs.
    identity = name.partition(";")[0]
    return replace(reference, name=name, model=_kept(master, cache_dir, identity, lambda: model))


def ort_name() -> str:
    """ONNX Runtime as it runs a master here."""
    return f"onnxruntime {installed_version('onnxruntime')} fp32"


def evaluator_name() -> str:
    """ONNX's own reference implementation as it runs a master here."""
    return f"onnx.reference {metadata.version('onnx')} fp32"


def _opened(open_model: Callable[[], _M]) -> tuple[_M | None, str]:
    """A model, or why there is none."""
    try:
        return open_model(), ""
    except ProofError as error:
        return None, str(error)


def importer_digest() -> str:
    """Digest of the importer's code."""
    return code_digest("compiler_worker.onnx_to_fx.importer")


def models_digest() -> str:
    """Of the code of all models here: what one computed before a mend is no reference after."""
    return code_digest("compiler_worker.references.models")


def _kept(
    master: MasterRecord, cache_dir: Path, name: str, open_model: Callable[[], Model]
) -> CachedModel:
    identity = f"{master.digest} {name} {models_digest()}"
    return CachedModel(identity, open_model, reference_folder(cache_dir))
