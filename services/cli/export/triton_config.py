"""Triton's configuration of an exported model: the gateway's, for another backend."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from google.protobuf import text_format

from compiler_worker.master.hub.folder import TOKENIZER_FILE
from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.model.replica_number import least_replicas
from services.gateway.api.descriptions import config_from_model
from services.pb import open_inference_v2_pb2 as pb

ONNX: Final = "onnxruntime_onnx"
PLAN: Final = "tensorrt_plan"
LABELS_FILE: Final = "labels.txt"


def plan_file(capability: str) -> str:
    """Name of a plan's file, `model_sm89.plan` for 8.9."""
    return f"model_sm{capability.replace('.', '')}.plan"


def triton_config(version: ModelVersion, plans: Mapping[str, PublishedEngine]) -> pb.ModelConfig:
    """The configuration of an entry.

    Args:
        version: the one that is written.
        plans: by compute capability; none for the ONNX file.
    """
    config = config_from_model(version, ())
    config.ClearField("backend")
    # Triton refuses inputs that the file has not.
    del config.input[len(version.master.inputs) :]
    config.platform = PLAN if plans else ONNX
    for tensor in _tensors(config):
        if not tensor.dims:
            # Triton has no tensor without dimensions of its own.
            tensor.dims.append(1)
            tensor.reshape.SetInParent()
    for output, spec in zip(config.output, version.master.outputs, strict=True):
        if version.recipe.labels and spec.shape[-1:] == (len(version.recipe.labels),):
            output.label_filename = LABELS_FILE
    count = least_replicas(version.recipe.num_replicas)
    if plans or count > 1:
        config.instance_group.append(_instances(version, count, is_plan=bool(plans)))
    for capability in plans:
        config.cc_model_filenames[capability] = plan_file(capability)
    config.model_warmup.extend(_warmups(version, config))
    return config


def config_text(config: pb.ModelConfig) -> str:
    """The text of config.pbtxt."""
    return text_format.MessageToString(config)


def lost_words(version: ModelVersion, config: pb.ModelConfig) -> Iterator[str]:
    """What of a recipe Triton has no word for."""
    batching = version.recipe.batching
    policies = (batching.default_queue_policy, *batching.queue_policies.values())
    if not config.max_batch_size:
        yield "requests are not joined: not every input and output begins with the batch dimension"
        if batching.priority_levels or any(policy.default_timeout_ms for policy in policies):
            yield "priority levels and queue policies: skipped, as they are of dynamic batching"
    if any(policy.max_timeout_ms for policy in policies):
        yield "max_timeout_ms: skipped: a request's own timeout has no bound in Triton"
    if version.recipe.text:
        yield f"text: skipped: clients send token ids, which {TOKENIZER_FILE} beside it makes"
    if batching.max_queue_bytes:
        yield "max_queue_bytes: skipped: Triton bounds the number of requests, not their bytes"
    for tensor in _tensors(config):
        if tensor.HasField("reshape"):
            yield f"{tensor.name}: clients send and get a last dimension of 1 more than here"


def _tensors(config: pb.ModelConfig) -> list[pb.ModelInput | pb.ModelOutput]:
    return [*config.input, *config.output]


def _instances(version: ModelVersion, count: int, *, is_plan: bool) -> pb.ModelInstanceGroup:
    group = pb.ModelInstanceGroup(count=count)
    if is_plan:
        group.kind = pb.ModelInstanceGroup.KIND_GPU
        # A plan has a profile for each bucket, and Triton takes the first one's sizes alone.
        group.profile.extend(str(index) for index, _ in enumerate(version.buckets))
    return group


def _warmups(version: ModelVersion, config: pb.ModelConfig) -> Iterable[pb.ModelWarmup]:
    """One run of each bucket at its largest sizes, as a replica makes them."""
    types = {tensor.name: tensor.data_type for tensor in config.input}
    first = 1 if config.max_batch_size else 0
    for bucket in version.buckets:
        warmup = pb.ModelWarmup(name=bucket.label, batch_size=1)
        if config.max_batch_size:
            warmup.batch_size = bucket.dims[version.recipe.batching.batch_dim or ""].max
        for spec in version.master.inputs:
            dims = [bucket.dims[d].max if isinstance(d, str) else d for d in spec.shape[first:]]
            entry = warmup.inputs[spec.name]
            entry.data_type = types[spec.name]
            entry.dims.extend(dims or [1])
            entry.zero_data = True
        yield warmup
