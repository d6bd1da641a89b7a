"""What a model takes and gives, in the words of the protocol."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from services.contracts.kserve.byte_strings import BYTES
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE
from services.contracts.model.batching import Batching
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.text_input import text_input
from services.gateway.routing.fleet_view import EngineInUse
from services.pb import open_inference_v2_pb2 as pb

PLATFORM: Final = "smelt_onnx"
# The protocol has two spellings of each datatype; only that of byte strings differs.
_CONFIG_TYPE: Final[Mapping[str, pb.DataType]] = {
    name: pb.TYPE_STRING if name == BYTES else getattr(pb, f"TYPE_{name}")
    for name in NUMPY_FROM_DATATYPE
}


def metadata_from_model(model: ModelVersion, versions: Sequence[int]) -> pb.ModelMetadataResponse:
    """Names, datatypes and shapes; the batch dimension is part of a shape here.

    Of a model that has a tokenizer `text` is the last input: it comes in place of the others.
    """
    text = text_input(model)
    return pb.ModelMetadataResponse(
        name=model.name,
        versions=[str(version) for version in versions],
        platform=PLATFORM,
        inputs=[_tensor_metadata(s) for s in (*model.master.inputs, *([text] if text else []))],
        outputs=[_tensor_metadata(spec) for spec in model.master.outputs],
    )


def config_from_model(model: ModelVersion, engines: Iterable[EngineInUse]) -> pb.ModelConfig:
    """Triton's model configuration; what serves now stands in its parameters."""
    max_batch_size = max_batch_size_of(model)
    first = 1 if max_batch_size else 0
    config = pb.ModelConfig(
        name=model.name,
        platform=PLATFORM,
        backend="smelt",
        max_batch_size=max_batch_size,
        version_policy=pb.ModelVersionPolicy(latest=pb.ModelVersionPolicy.Latest(num_versions=1)),
        input=[_config_input(spec, first) for spec in model.master.inputs],
        output=[_config_output(spec, first) for spec in model.master.outputs],
    )
    if text := text_input(model):
        config.input.append(_config_input(text, first))
        # Load generators send all that is not optional, and text comes alone.
        config.input[-1].optional = True
    if max_batch_size:
        config.dynamic_batching.CopyFrom(_dynamic_batching(model))
    config.response_cache.enable = model.recipe.response_cache
    for key, value in _parameters(model, tuple(engines)).items():
        config.parameters[key].string_value = value
    return config


def max_batch_size_of(model: ModelVersion) -> int:
    """Rows that the replica may join; 0 when it serves requests one by one.

    Clients take the leading dimension off every shape when this is not 0, so it is 0
    unless every input and output begins with the batch dimension.
    """
    batch_dim = model.recipe.batching.batch_dim
    specs = model.master.inputs + model.master.outputs
    if batch_dim is None or not all(spec.shape[:1] == (batch_dim,) for spec in specs):
        return 0
    return max((b.dims[batch_dim].max for b in model.buckets if batch_dim in b.dims), default=0)


def _dynamic_batching(model: ModelVersion) -> pb.ModelDynamicBatching:
    batching = model.recipe.batching
    spans = [bucket.dims.get(batching.batch_dim or "") for bucket in model.buckets]
    return pb.ModelDynamicBatching(
        # With so many rows a bucket is full, and no batch waits for more.
        preferred_batch_size=sorted({span.max for span in spans if span}),
        max_queue_delay_microseconds=_microseconds(batching.max_delay_ms),
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority,
        default_queue_policy=_queue_policy(batching, 0),
        priority_queue_policy={
            level: _queue_policy(batching, level) for level in batching.queue_policies
        },
    )


def _queue_policy(batching: Batching, level: int) -> pb.ModelQueuePolicy:
    policy = batching.policy(level)
    return pb.ModelQueuePolicy(
        timeout_action=pb.ModelQueuePolicy.REJECT,
        default_timeout_microseconds=_microseconds(policy.default_timeout_ms),
        allow_timeout_override=True,
        max_queue_size=batching.room(level),
    )


def _microseconds(milliseconds: float) -> int:
    return round(milliseconds * 1000)


def _tensor_metadata(spec: TensorSpec) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(
        name=spec.name, datatype=spec.datatype, shape=spec.wire_shape
    )


def _config_input(spec: TensorSpec, first_dim: int) -> pb.ModelInput:
    dims = spec.wire_shape[first_dim:]
    return pb.ModelInput(name=spec.name, data_type=_CONFIG_TYPE[spec.datatype], dims=dims)


def _config_output(spec: TensorSpec, first_dim: int) -> pb.ModelOutput:
    dims = spec.wire_shape[first_dim:]
    return pb.ModelOutput(name=spec.name, data_type=_CONFIG_TYPE[spec.datatype], dims=dims)


def _parameters(model: ModelVersion, engines: tuple[EngineInUse, ...]) -> dict[str, str]:
    """Facts beyond the protocol; replicas that differ are listed, separated by commas."""
    facts = {"master_digest": {model.master.digest}}
    for name in ("kind", "precision", "generation", "digest"):
        facts[f"engine_{name}"] = {getattr(engine, name) for engine in engines}
    facts["fallback_reason"] = {engine.fallback_reason for engine in engines}
    if labels := model.recipe.labels:
        facts["labels"] = {json.dumps(labels)}
        facts["label_scores"] = {model.recipe.label_scores}
    joined = {key: ",".join(sorted(values - {""})) for key, values in facts.items()}
    return {key: value for key, value in joined.items() if value}
