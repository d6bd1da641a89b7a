"""Whether a model computes the empty tensors that its recipe lets requests have."""

from pathlib import Path

from compiler_worker.models import OrtModel
from compiler_worker.sampling import draw_sample, edge_sizes
from services.contracts.errors import InvalidRecipeError, ProofError
from services.contracts.manifest import MasterRecord
from services.contracts.recipe import Recipe


def check_empty(master_path: Path, master: MasterRecord, recipe: Recipe) -> None:
    """Run the master once at each empty size: no engine could be proven where it fails.

    Raises:
        InvalidRecipeError: it fails, and which bucket has to begin at 1.
    """
    empty = [
        (bucket, sizes)
        for bucket in recipe.buckets
        for sizes in edge_sizes(bucket)
        if not all(sizes.values())
    ]
    model = OrtModel.open(master_path, master) if empty else None
    for bucket, sizes in empty:
        assert model is not None
        try:
            model.run(draw_sample(master, recipe, bucket, sizes).inputs)
        except ProofError as error:
            raise InvalidRecipeError(
                f"recipe: bucket {bucket.label}: the model fails at {sizes}: {error}; begin the "
                "bucket at 1 where a size is 0"
            ) from error
