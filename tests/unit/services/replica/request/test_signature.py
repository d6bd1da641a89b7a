"""Sizes that a model version takes, whatever engine serves it."""

import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from services.replica.request.signature import Signature
from tests.unit.services.replica.models import make_model, text_model


def _bucket(**ends: tuple[int, int]) -> Bucket:
    return Bucket(dims={n: DimRange(min=a, opt=b, max=b) for n, (a, b) in ends.items()})


def _image_model(*buckets: Bucket, rows: int | str = "batch") -> ModelVersion:
    """Pixels of any height, which nothing masks; `rows` of the answer."""
    pixels = TensorSpec(name="pixels", datatype="FP32", shape=("batch", 3, "height"))
    mean = TensorSpec(name="mean", datatype="FP32", shape=(rows, 1))
    return make_model((pixels,), (mean,), Recipe(buckets=buckets))


def test_what_cannot_be_padded_is_refused_below_a_bucket() -> None:
    signature = Signature.from_model(_image_model(_bucket(batch=(1, 8), height=(224, 512))))
    assert signature.growing == {"batch"}
    signature.check_sizes({"batch": 1, "height": 224})
    with pytest.raises(
        InvalidRequestError,
        match=r"dimension 'height' is 4, allowed is 224..512, as it cannot be padded",
    ):
        signature.check_sizes({"batch": 1, "height": 4})
    with pytest.raises(InvalidRequestError, match=r"'height' is 600, allowed is 224..512$"):
        signature.check_sizes({"batch": 1, "height": 600})


def test_each_size_has_to_be_held_by_one_and_the_same_bucket() -> None:
    low, high = _bucket(batch=(1, 8), height=(8, 8)), _bucket(batch=(1, 2), height=(32, 64))
    signature = Signature.from_model(_image_model(low, high))
    signature.check_sizes({"batch": 8, "height": 8})
    with pytest.raises(InvalidRequestError, match="'height' is 16, allowed is 8..8 or 32..64"):
        signature.check_sizes({"batch": 1, "height": 16})
    with pytest.raises(InvalidRequestError, match="expected sizes within one of") as refused:
        signature.check_sizes({"batch": 8, "height": 32})
    assert "dimension" not in str(refused.value)


def test_rows_and_what_a_mask_covers_are_taken_below_a_bucket() -> None:
    model = text_model()
    recipe = model.recipe.model_copy(update={"buckets": (_bucket(batch=(4, 8), sequence=(8, 8)),)})
    signature = Signature.from_model(model.model_copy(update={"recipe": recipe}))
    assert signature.growing == {"batch", "sequence"}
    signature.check_sizes({"batch": 1, "sequence": 3})
    with pytest.raises(InvalidRequestError, match="dimension 'sequence' is 9, allowed is 8..8$"):
        signature.check_sizes({"batch": 1, "sequence": 9})


def test_rows_that_depend_on_each_other_are_not_made_up() -> None:
    model = _image_model(_bucket(batch=(4, 8), height=(8, 8)), rows=1)
    with pytest.raises(InvalidRequestError, match="'batch' is 1, allowed is 4..8, as it cannot"):
        Signature.from_model(model).check_sizes({"batch": 1, "height": 8})


def test_what_is_empty_is_taken_where_a_bucket_begins_there() -> None:
    signature = Signature.from_model(_image_model(_bucket(batch=(1, 8), height=(0, 8))))
    signature.check_sizes({"batch": 1, "height": 0})
    signature.check_sizes({"batch": 1, "height": 3})


def test_a_static_model_without_a_recipe_has_nothing_to_refuse() -> None:
    spec = TensorSpec(name="x", datatype="FP32", shape=(2, 3))
    signature = Signature.from_model(make_model((spec,), (spec,)))
    signature.check_sizes({})
    assert signature.max_rows == 0
