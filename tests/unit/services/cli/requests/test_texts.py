"""What `smelt infer --text` sends, by what the model says it takes."""

import pytest

from services.cli.requests.infer import array_from_texts
from services.contracts.errors import InvalidRequestError
from services.pb import open_inference_v2_pb2 as pb


def model_of(*shape: int) -> pb.ModelMetadataResponse:
    model = pb.ModelMetadataResponse(name="m")
    if shape:
        model.inputs.add(name="text", datatype="BYTES", shape=shape)
    return model


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((-1, 1), [["a"], ["b"]]), ((-1, 2), [["a", "b"]]), ((-1,), ["a", "b"]), ((), [["a"], ["b"]])],
)
def test_rows(shape: tuple[int, ...], wanted: object) -> None:
    assert array_from_texts(["a", "b"], model_of(*shape)).tolist() == wanted


def test_half_of_a_pair_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="takes pairs; give two for each, got 3"):
        array_from_texts(["a"] * 3, model_of(-1, 2))
