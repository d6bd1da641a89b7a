"""Whether a model computes the sizes that it is to be served at: found when it is added."""

from collections.abc import Sequence
from pathlib import Path

import psutil

from compiler_worker.inputs.sample_sizes import edge_sizes
from compiler_worker.inputs.sampling import draw_sample
from compiler_worker.references.models import EvaluatorModel, Model, OrtModel
from services.contracts.errors import InvalidRecipeError, ProofError
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, Recipe
from services.engines.request_check import Sizes
from services.engines.shapes import zeros_at

# Of ONNX Runtime's, where a host has too little.
_NO_MEMORY = ("bad_alloc", "Failed to allocate memory")


def check_empty(
    master_path: Path, master: MasterRecord, recipe: Recipe, buckets: Sequence[Bucket]
) -> None:
    """Run the master once at each empty size: no engine could be proven where it fails.

    Raises:
        InvalidRecipeError: it fails, and which bucket has to begin at 1.
    """
    empty = [
        (bucket, sizes)
        for bucket in buckets
        for sizes in edge_sizes(bucket)
        if not all(sizes.values())
    ]
    model = _opened(master_path, master) if empty else None
    for bucket, sizes in empty:
        assert model is not None
        try:
            model.run(draw_sample(master, recipe, bucket, sizes).inputs)
        except ProofError as error:
            raise InvalidRecipeError(
                f"recipe: bucket {bucket.label}: the model fails at {sizes}: {error}; begin the "
                "bucket at 1 where a size is 0"
            ) from error


def _opened(master_path: Path, master: MasterRecord) -> Model:
    """ONNX's own implementation where ONNX Runtime does not know the master's opset."""
    try:
        return OrtModel.open(master_path, master)
    except ProofError:
        return EvaluatorModel.open(master_path, master)


def check_largest(
    master_path: Path, master: MasterRecord, recipe: Recipe, buckets: Sequence[Bucket]
) -> None:
    """Run the master once at the largest sizes of each bucket: no replica starts where it fails.

    At as few rows as there may be: a model seldom minds their number, and each takes time. What
    ONNX Runtime does not run at the smallest sizes either, or not in the memory of this host, is
    left to the proof.

    Raises:
        InvalidRecipeError: it fails, at which sizes, and whose choice they are.
    """
    rows = recipe.batching.batch_dim
    if not any(name != rows for bucket in buckets for name in bucket.dims):
        return
    if not has_room(master_path):
        return
    try:
        model = OrtModel.open(master_path, master)
        # What fails here fails for another reason than size.
        _run(model, master, {name: max(span.min, 1) for name, span in buckets[0].dims.items()})
    except ProofError:
        return
    for bucket in buckets:
        sizes = {n: max(r.min, 1) if n == rows else r.max for n, r in bucket.dims.items()}
        try:
            _run(model, master, sizes)
        except ProofError as error:
            if any(words in str(error) for words in _NO_MEMORY):
                return
            raise InvalidRecipeError(_too_large(bucket, sizes, recipe, error)) from error


def has_room(master_path: Path) -> bool:
    """Whether the memory of this host holds the master's weights twice."""
    files = (path for path in master_path.parent.iterdir() if path.is_file())
    num_bytes = sum(path.stat().st_size for path in files)
    return bool(2 * num_bytes <= psutil.virtual_memory().available)


def _run(model: OrtModel, master: MasterRecord, sizes: Sizes) -> None:
    """Of zeros, which any model takes: valid indices, and no value that matters."""
    model.run({spec.name: zeros_at(spec, sizes) for spec in master.inputs})


def _too_large(bucket: Bucket, sizes: Sizes, recipe: Recipe, error: ProofError) -> str:
    if recipe.buckets:
        return (
            f"recipe: bucket {bucket.label}: the model fails at {sizes}: {error}; end the bucket "
            "at sizes that it computes"
        )
    return (
        f"the model fails at {sizes}, sizes that are served where a recipe names no buckets: "
        f"{error}; give a recipe that has buckets of sizes that it computes: --recipe FILE"
    )
