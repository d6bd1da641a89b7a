"""Opens a source as a master: the first step of every build."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compiler_worker.master.dimensions.named_dim import NamedDim
from compiler_worker.master.pytorch_source import PyTorchModel, load_factory
from compiler_worker.master.samples import check_samples, write_samples
from compiler_worker.master.source import (
    HubModel,
    MasterSource,
    OnnxFile,
    TorchFactory,
    TransformersFolder,
    TritonModel,
)
from compiler_worker.progress import Progress
from services.contracts.errors import InvalidModelError
from services.contracts.model.dim_limits import DimLimits
from services.contracts.model.local_master import LocalMaster
from services.contracts.model.recipe import Recipe

# What is wrong with a recipe for a model of these dynamic dimensions is raised.
CheckDims = Callable[[Sequence[str]], None]
MODEL_FILE = "model.onnx"


@dataclass(frozen=True, kw_only=True)
class StoredMaster(LocalMaster):
    """A master that was made of a source; `MODEL_FILE` is the entry of its files.

    Attributes:
        named_dims: dimensions that its source left unnamed.
        classes: by output that its source gives as maps, those of its columns.
    """

    named_dims: tuple[NamedDim, ...] = ()
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OpenedMaster(StoredMaster):
    """A master with what its source declares.

    Attributes:
        recipe: from a factory that brings one.
        samples: real inputs (.npz) from a factory that brings some.
        dim_limits: by dimension, from a factory.
        remarks: what was taken of a source's own configuration and what was not, a line each.
    """

    recipe: Recipe | None = None
    samples: Path | None = None
    dim_limits: Mapping[str, DimLimits] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def open_master(
    source: MasterSource,
    target_dir: Path,
    progress: Progress,
    check_dims: CheckDims | None = None,
) -> OpenedMaster:
    """Turn a source into a normalised, checked master in an empty folder.

    Args:
        source: an ONNX file, a factory of a PyTorch module, a folder of transformers, or a model of
            a Triton repository.
        target_dir: an empty folder; `model.onnx` and its external data are written there.
        progress: called with each step in words.
        check_dims: called with the dynamic dimensions of the inputs as soon as they are known,
            before an export and whatever else takes long.

    Raises:
        InvalidModelError: the source cannot become a master; the message has the reason.
        UnsupportedGraphError: it is sound ONNX, but holds something that is not taken.
    """
    # Both branches import heavy libraries; a message first keeps the wait explained.
    progress(f"opening {source}")
    match source:
        case OnnxFile(path=path):
            from compiler_worker.master.stored import store_onnx

            return OpenedMaster(**vars(store_onnx(path, target_dir, check_dims)))
        case TritonModel():
            from compiler_worker.master.triton.opening import open_triton

            return open_triton(source, target_dir, check_dims)
        case TorchFactory():
            return _exported(load_factory(source), target_dir, progress, check_dims)
        case TransformersFolder(folder=folder):
            from compiler_worker.master.hub.module import load_module

            return _exported(load_module(folder), target_dir, progress, check_dims)
        case HubModel():
            raise InvalidModelError(
                f"{source}: a folder or file of this machine is wanted here; smelt models add "
                "takes models of the hub"
            )


def _exported(
    model: PyTorchModel, target_dir: Path, progress: Progress, check_dims: CheckDims | None
) -> OpenedMaster:
    from compiler_worker.master.export import export_master

    if check_dims is not None:
        check_dims(sorted({dim for axes in model.dynamic_dims.values() for dim in axes.values()}))
    stored = export_master(model, target_dir, progress)
    samples = None
    if model.samples is not None:
        check_samples(model.samples, stored.inputs)
        samples = write_samples(model.samples, target_dir)
    return OpenedMaster(
        **vars(stored), recipe=model.recipe, samples=samples, dim_limits=model.dim_limits
    )
