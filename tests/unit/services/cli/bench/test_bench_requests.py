"""Which sizes are asked, and by which text."""

import pytest

from services.cli.bench.bench_requests import drawn_requests
from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.batching import Batching
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from services.pb import open_inference_v2_pb2 as pb


def model(*buckets: Bucket, shape: tuple[int | str, ...] = ("batch", "sequence")) -> ModelVersion:
    spec = TensorSpec(name="ids", datatype="INT64", shape=shape)
    return ModelVersion(
        name="m",
        version=1,
        master=MasterRecord(
            digest="d" * 64, files={}, inputs=(spec,), outputs=(spec,), opset=23, num_parameters=0
        ),
        recipe=Recipe(buckets=buckets, batching=Batching(batch_dim="batch")),
        source="test",
        source_fingerprint="f",
        created_at="2026-01-01T00:00:00Z",
    )


def bucket(rows: tuple[int, int, int], length: tuple[int, int, int]) -> Bucket:
    dims = {"batch": rows, "sequence": length}
    names = ("min", "opt", "max")
    return Bucket(dims={n: DimRange(**dict(zip(names, r, strict=True))) for n, r in dims.items()})


BUCKETS = (
    bucket((1, 8, 32), (1, 128, 512)),
    bucket((1, 4, 8), (1, 16, 32)),
    bucket((1, 4, 16), (1, 64, 128)),
)


def asked(version: ModelVersion, *texts: str) -> list[tuple[str, int]]:
    return [(each.size, each.rows) for each in drawn_requests(version, "", texts)]


def test_a_row_the_usual_and_the_most_are_asked() -> None:
    assert asked(model(*BUCKETS)) == [
        ("batch=1, sequence=16", 1),
        ("batch=4, sequence=64", 4),
        ("batch=32, sequence=512", 32),
    ]
    assert asked(model(shape=(2, 3))) == [("fixed size", 1)]


def test_sizes_of_a_text_take_the_place_of_usual_ones() -> None:
    texts = "batch=2,sequence=7", "batch=3", "sequence=600"
    assert asked(model(*BUCKETS), *texts) == [
        ("batch=2, sequence=7", 2),
        ("batch=3, sequence=64", 3),
        ("batch=4, sequence=600", 4),
    ]


def test_requests_of_a_size_differ_in_values_alone() -> None:
    (found,) = drawn_requests(model(*BUCKETS), "3", ["batch=2,sequence=7"])
    requests = [pb.ModelInferRequest.FromString(body) for body in found.bodies]
    assert {each.model_version for each in requests} == {"3"}
    assert {tuple(each.inputs[0].shape) for each in requests} == {(2, 7)}
    assert len({each.raw_input_contents[0] for each in requests}) > 1


@pytest.mark.parametrize("text", ["batch", "batch=-1", "rows=2", "batch=2,", "batch=2;sequence=3"])
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"expected DIMENSION=N.* of batch, sequence; got"
    ):
        asked(model(*BUCKETS), text)
