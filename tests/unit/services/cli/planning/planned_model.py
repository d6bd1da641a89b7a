"""A model version with two dynamic dimensions, of which `length` may be padded."""

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.recipe import Bucket, InputRecipe, InputRole, Recipe


def planned_model(*buckets: Bucket) -> ModelVersion:
    """A mask makes lengths paddable."""
    inputs = tuple(
        TensorSpec(name=name, datatype="INT64", shape=("batch", "length"))
        for name in ("ids", "mask")
    )
    output = TensorSpec(name="y", datatype="FP32", shape=("batch", 4))
    master = MasterRecord(
        digest="d" * 64, files={}, inputs=inputs, outputs=(output,), opset=23, num_parameters=0
    )
    roles = {"ids": InputRecipe(high=9), "mask": InputRecipe(role=InputRole.MASK)}
    return ModelVersion(
        name="m",
        version=1,
        master=master,
        recipe=Recipe(buckets=buckets, inputs=roles),
        source="test",
        source_fingerprint="f",
        created_at="2026-01-01T00:00:00Z",
    )
