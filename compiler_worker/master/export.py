"""Exports a PyTorch module at the newest opset whose result is right.

Newer opsets keep more meaning (23 has one Attention op where 20 has twenty nodes), but a
newer op may be exported wrongly or not be understood yet. So the opset is chosen per
model, by checks of the very files that will be stored.
"""

import contextlib
import inspect
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir.passes.common as passes
import torch
from torch.nn import functional

from compiler_worker.master.equality import check_equal
from compiler_worker.master.opened import MODEL_FILE, StoredMaster
from compiler_worker.master.pytorch_source import PyTorchModel
from compiler_worker.master.stored import store_onnx
from compiler_worker.progress import Progress
from services.contracts.errors import InvalidModelError

# 23 first: it is the newest that the exporter itself writes; 24 is a conversion of it.
OPSETS = (23, 24, 20)

_log = logging.getLogger(__name__)


def export_master(
    model: PyTorchModel, target_dir: Path, progress: Progress, opsets: tuple[int, ...] = OPSETS
) -> StoredMaster:
    """Export, store and check a module; each refused opset is reported with its reason.

    Args:
        model: the module, its example inputs and its dynamic dimensions.
        target_dir: an empty folder.
        progress: called with each step in words.
        opsets: of ai.onnx, in the order in which they are tried.

    Raises:
        InvalidModelError: the example inputs are unfit, or every opset was refused.
    """
    # Checked before the first export, which takes seconds, and whose error would name no input.
    model.traced_sizes()
    refusals = []
    for opset in opsets:
        progress(f"exporting at opset {opset}")
        try:
            return _export_at(model, opset, target_dir)
        except (InvalidModelError, torch.onnx.OnnxExporterError) as error:
            reason = " ".join(str(error).split())
            refusals.append(f"opset {opset}: {reason}")
            _log.warning("opset %d refused: %s", opset, reason)
            progress(f"opset {opset} refused: {reason}")
    raise InvalidModelError(
        f"{type(model.module).__name__} gives no right ONNX graph at any opset of "
        f"{', '.join(map(str, opsets))}; " + "; ".join(refusals)
    )


def _export_at(model: PyTorchModel, opset: int, target_dir: Path) -> StoredMaster:
    with tempfile.TemporaryDirectory(prefix="smelt-export-") as folder:
        path = Path(folder) / MODEL_FILE
        _export(model, opset, path)
        stored = store_onnx(path, target_dir)
    check_equal(model, stored.files[MODEL_FILE])
    return stored


def _export(model: PyTorchModel, opset: int, path: Path) -> None:
    with _quiet(), plain_bags():
        program = torch.onnx.export(
            model.module.eval(),
            tuple(model.example_inputs.values()),
            dynamo=True,
            opset_version=opset,
            input_names=list(model.example_inputs),
            output_names=list(model.output_names),
            dynamic_shapes=_dynamic_shapes(model),
            verbose=False,
        )
        if program is None:
            raise InvalidModelError(f"the exporter returned no program at opset {opset}")
        # An output may be called as an op is, whose values the exporter calls so too.
        passes.NameFixPass()(program.model)
        program.save(str(path), external_data=True)


def _dynamic_shapes(model: PyTorchModel) -> tuple[dict[int, object], ...]:
    # One Dim object per name: only named dimensions are unified between inputs.
    dims = {
        name: torch.export.Dim(name, min=limits.min, max=limits.max)
        for name, limits in model.dim_limits.items()
    }
    return tuple(
        {axis: dims[dim] for axis, dim in model.dynamic_dims.get(name, {}).items()}
        for name in model.example_inputs
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # The exporter warns about optional packages and its own deprecated calls. What matters
    # about its result is checked afterwards.
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def plain_bags() -> Iterator[None]:
    """Have `torch.nn.functional.embedding_bag` gather and reduce where bags have one length.

    PyTorch's exporter writes it as a loop that grows a sequence row by row, which only an
    interpreter of ONNX can run. Whether both are the same is checked on the file, as always.
    """
    original = functional.embedding_bag
    signature = inspect.signature(original)

    def embedding_bag(*args: Any, **options: Any) -> Any:
        call = signature.bind(*args, **options)
        call.apply_defaults()
        given = call.arguments
        # max_norm changes the table itself, which no graph of ONNX does.
        if given["input"].dim() == 2 and given["offsets"] is None and given["max_norm"] is None:
            names = ("input", "weight", "mode", "per_sample_weights", "padding_idx")
            return _of_one_length(*map(given.get, names))
        return original(*args, **options)

    functional.embedding_bag = embedding_bag
    try:
        yield
    finally:
        functional.embedding_bag = original


def _of_one_length(
    ids_BL: Any, weight: Any, mode: Any, scales_BL: torch.Tensor | None, padding_idx: int | None
) -> torch.Tensor:
    """Reduce the rows of each bag; those of the padding id do not count."""
    rows_BLD = functional.embedding(ids_BL, weight)
    if scales_BL is not None:
        rows_BLD = rows_BLD * scales_BL.unsqueeze(-1)
    if padding_idx is None:
        if mode == "max":
            return rows_BLD.amax(1)
        return rows_BLD.sum(1) if mode == "sum" else rows_BLD.mean(1)
    # A negative padding_idx counts from the table's end, as torch has it.
    counts_BL1 = (ids_BL != padding_idx % weight.shape[0]).unsqueeze(-1)
    if mode == "max":
        # torch gives zeros for a bag of padding alone.
        largest_BD = rows_BLD.masked_fill(~counts_BL1, -torch.inf).amax(1)
        return torch.where(counts_BL1.any(1), largest_BD, torch.zeros_like(largest_BD))
    total_BD: torch.Tensor = (rows_BLD * counts_BL1).sum(1)
    return total_BD if mode == "sum" else total_BD / counts_BL1.sum(1).clamp(min=1)
