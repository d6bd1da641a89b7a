"""Exports a PyTorch module at the newest opset whose result is right.

Newer opsets keep more meaning (23 has one Attention op where 20 has twenty nodes), but a
newer op may be exported wrongly or not be understood yet. So the opset is chosen per
model, by checks of the very files that will be stored.
"""

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx_ir.passes.common as passes
import torch

from compiler_worker.master.bags import plain_bags
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
