"""Small models as values: what the replica's parts need to know of one."""

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.batching import Batching
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe


def make_model(
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    recipe: Recipe | None = None,
) -> ModelVersion:
    """A model version as a store would give it."""
    return ModelVersion(
        name="m",
        version=3,
        master=MasterRecord(
            digest="d" * 64, files={}, inputs=inputs, outputs=outputs, opset=20, num_parameters=0
        ),
        recipe=recipe or Recipe(),
        source="test",
        source_fingerprint="",
        created_at="2026-01-01T00:00:00Z",
    )


def text_model(
    *, max_batch: int = 8, max_sequence: int = 16, max_queue: int = 512, max_delay_ms: float = 0.0
) -> ModelVersion:
    """Token ids and mask in, one vector per position and one per row out; may be padded."""
    dims = {
        "batch": DimRange(min=1, opt=1, max=max_batch),
        "sequence": DimRange(min=1, opt=1, max=max_sequence),
    }
    return make_model(
        (
            TensorSpec(name="ids", datatype="INT64", shape=("batch", "sequence")),
            TensorSpec(name="mask", datatype="INT64", shape=("batch", "sequence")),
        ),
        (
            TensorSpec(name="positions", datatype="INT64", shape=("batch", "sequence")),
            TensorSpec(name="pooled", datatype="INT64", shape=("batch", 1)),
        ),
        Recipe(
            buckets=(Bucket(dims=dims),),
            inputs={
                "ids": InputRecipe(role=InputRole.VALUES, pad=7),
                "mask": InputRecipe(role=InputRole.MASK),
            },
            batching=Batching(max_queue=max_queue, max_delay_ms=max_delay_ms),
        ),
    )
