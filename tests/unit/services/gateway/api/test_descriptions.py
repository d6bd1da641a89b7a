"""Metadata and configuration, as tritonclient and perf_analyzer read them."""

import json
from collections.abc import Callable

import pytest

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE
from services.contracts.model.batching import Batching, QueuePolicy
from services.contracts.model.label_scores import LabelScores
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from services.contracts.model.text_recipe import TextRecipe
from services.gateway.api.descriptions import (
    config_from_model,
    max_batch_size_of,
    metadata_from_model,
)
from services.gateway.routing.fleet_view import EngineInUse
from services.pb import open_inference_v2_pb2 as pb
from tests.unit.services.replica.text_models import token_model

NewModel = Callable[..., ModelVersion]
FIXED = TensorSpec(name="image", datatype="FP32", shape=(1, 3, 8, 8))
SEQUENCE_FIRST = TensorSpec(name="tokens", datatype="INT64", shape=("sequence", "batch"))


def test_metadata_keeps_the_batch_dimension(new_model: NewModel) -> None:
    answer = metadata_from_model(new_model(version=2), [1, 2])
    assert (answer.name, list(answer.versions)) == ("minilm", ["1", "2"])
    found = [(t.name, t.datatype, list(t.shape)) for t in (*answer.inputs, *answer.outputs)]
    assert found == [
        ("ids", "INT64", [-1, -1]),
        ("mask", "INT64", [-1, -1]),
        ("embedding", "FP32", [-1, 384]),
    ]


@pytest.mark.parametrize(("pairs", "width"), [(False, 1), (True, 2)])
def test_text_is_an_input_in_place_of_the_others(pairs: bool, width: int) -> None:
    model = token_model(TextRecipe(tokenizer="tokenizer.json", pairs=pairs))
    text = metadata_from_model(model, [1]).inputs[-1]
    assert (text.name, text.datatype, list(text.shape)) == ("text", "BYTES", [-1, width])
    inputs = config_from_model(model, ()).input
    assert [each.optional for each in inputs] == [False, False, False, True]
    assert list(inputs[-1].dims) == [width]


def test_config_of_a_batching_model_leaves_the_batch_dimension_out(new_model: NewModel) -> None:
    config = config_from_model(new_model(batching=Batching(max_delay_ms=1.5)), ())
    assert config.max_batch_size == 32
    assert config.HasField("dynamic_batching")
    assert config.dynamic_batching.max_queue_delay_microseconds == 1500
    found = [(t.name, t.data_type, list(t.dims)) for t in (*config.input, *config.output)]
    assert found == [
        ("ids", pb.TYPE_INT64, [-1]),
        ("mask", pb.TYPE_INT64, [-1]),
        ("embedding", pb.TYPE_FP32, [384]),
    ]
    assert not config.model_transaction_policy.decoupled


def test_config_says_how_requests_wait(new_model: NewModel) -> None:
    batching = Batching(
        priority_levels=3,
        default_priority=2,
        default_queue_policy=QueuePolicy(default_timeout_ms=20),
        queue_policies={1: QueuePolicy(max_queue=7)},
    )
    config = config_from_model(new_model(batching=batching), ())
    found = config.dynamic_batching
    assert (found.priority_levels, found.default_priority_level) == (3, 2)
    assert list(found.preferred_batch_size) == [1, 32]
    assert found.default_queue_policy.default_timeout_microseconds == 20_000
    assert found.default_queue_policy.allow_timeout_override
    assert {k: v.max_queue_size for k, v in found.priority_queue_policy.items()} == {1: 7}
    assert found.default_queue_policy.max_queue_size == batching.max_queue
    assert not config.response_cache.enable


def test_a_model_without_buckets_is_described_as_it_is_served(new_model: NewModel) -> None:
    config = config_from_model(new_model(buckets=()), ())
    assert config.max_batch_size == 8
    assert list(config.dynamic_batching.preferred_batch_size) == [8]


@pytest.mark.parametrize(
    "changes",
    [
        {"batching": Batching(batch_dim=None)},
        {"inputs": (FIXED,)},
        {"inputs": (SEQUENCE_FIRST,)},
        {"outputs": (FIXED,)},
        {"inputs": (TensorSpec(name="scalar", datatype="FP32", shape=()),)},
    ],
)
def test_models_that_are_not_batched(new_model: NewModel, changes: dict[str, object]) -> None:
    model = new_model(**changes)
    config = config_from_model(model, ())
    assert config.max_batch_size == max_batch_size_of(model) == 0
    assert not config.HasField("dynamic_batching")
    assert tuple(config.input[0].dims) == model.master.inputs[0].wire_shape


def test_the_largest_batch_of_all_buckets_counts(new_model: NewModel) -> None:
    other = Bucket(dims={"sequence": DimRange(min=1, opt=2, max=512)})
    big = Bucket(dims={"batch": DimRange(min=1, opt=2, max=64)})
    assert max_batch_size_of(new_model(buckets=(big, other))) == 64


@pytest.mark.parametrize("datatype", NUMPY_FROM_DATATYPE)
def test_every_datatype_has_a_config_type(new_model: NewModel, datatype: str) -> None:
    spec = TensorSpec(name="x", datatype=datatype, shape=(2,))
    config = config_from_model(new_model(inputs=(spec,)), ())
    wanted = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    assert pb.DataType.Name(config.input[0].data_type) == wanted


def test_parameters_have_labels_where_there_are_some(new_model: NewModel) -> None:
    recipe = Recipe(labels=("a, b", "c"), label_scores=LabelScores.SIGMOID)
    config = config_from_model(new_model().model_copy(update={"recipe": recipe}), ())
    assert json.loads(config.parameters["labels"].string_value) == ["a, b", "c"]
    assert config.parameters["label_scores"].string_value == "sigmoid"


def test_parameters_say_what_serves(new_model: NewModel) -> None:
    proven = EngineInUse(
        digest="abc", kind="openvino", precision="bf16", generation="g", fallback_reason=""
    )
    fallback = EngineInUse(
        digest="", kind="", precision="", generation="", fallback_reason="not_proven"
    )
    config = config_from_model(new_model(), (fallback, proven, proven))
    found = {key: value.string_value for key, value in config.parameters.items()}
    assert found == {
        "master_digest": "d" * 64,
        "engine_kind": "openvino",
        "engine_precision": "bf16",
        "engine_generation": "g",
        "engine_digest": "abc",
        "fallback_reason": "not_proven",
    }
