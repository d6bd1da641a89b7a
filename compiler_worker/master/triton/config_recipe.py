"""From Triton's model configuration to a recipe, and a line for each thing taken or left out."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml
from pydantic import ValidationError

from compiler_worker.master.triton.config_text import ConfigText
from services.contracts.errors import InvalidModelError
from services.contracts.model.batching import MAX_QUEUE, Batching, QueuePolicy
from services.contracts.model.label_scores import LabelScores
from services.contracts.model.precision_choice import AUTO
from services.contracts.model.recipe import Recipe
from services.pb import open_inference_v2_pb2 as pb

_REJECT: Final = pb.ModelQueuePolicy.REJECT
# Parameters that an export writes, as ModelConfig has them.
_LABELS: Final = "labels"
_LABEL_SCORES: Final = "label_scores"
# What is set in a configuration and has no place in a recipe.
_LEFT_OUT: Final = {
    "optimization": "Smelt builds engines itself, and proves each",
    "cc_model_filenames": "Smelt builds an engine for each generation from one ONNX file",
    "metric_tags": "metrics have the labels model and version",
    "parameters": "options of Triton's backend",
    "model_operations": "custom libraries are not loaded",
    "model_repository_agents": "engines are signed and verified by Smelt's own keys",
    "model_transaction_policy": "each request has one answer",
    "runtime": "Smelt has its own",
    "batch_input": "inputs are what requests hold",
    "batch_output": "outputs are as the model computes them",
}


def recipe_of(text: ConfigText, folder: Path) -> Recipe:
    """What a configuration says, but of sizes; raises InvalidModelError.

    Args:
        text: the configuration.
        folder: of the model, with its files of labels.
    """
    config = text.config
    try:
        return Recipe(
            batching=_batching(config.dynamic_batching),
            labels=_labels(config, folder),
            label_scores=_label_scores(config),
            response_cache=config.response_cache.enable,
            num_replicas=count if (count := _num_instances(config)) > 1 else AUTO,
        )
    except ValidationError as error:
        faults = "; ".join(f"{each['loc']}: {each['msg']}" for each in error.errors())
        raise InvalidModelError(f"config.pbtxt has no recipe like it: {faults}") from error


def recipe_words(text: ConfigText, recipe: Recipe) -> Iterator[str]:
    """A line for each part of a configuration: what it became, or why it is left out."""
    config = text.config
    taken = recipe.model_dump(mode="json", exclude_defaults=True)
    for name, part in taken.items():
        flow = yaml.safe_dump(
            {name: part}, default_flow_style=True, sort_keys=False, width=math.inf
        )
        yield f"taken as {flow.strip()[1:-1]}"
    if config.ListFields() and not config.HasField("dynamic_batching"):
        yield (
            "no dynamic_batching: waiting requests are joined all the same, and none waits for it; "
            "a recipe with batching: {batch_dim: null} computes each alone"
        )
    yield from _policy_words(config.dynamic_batching)
    for group in config.instance_group:
        kind = pb.ModelInstanceGroup.Kind.Name(group.kind)
        yield f"instance_group {kind}: the fleet's devices decide where replicas run"
    tensors: list[pb.ModelInput | pb.ModelOutput] = [*config.input, *config.output]
    for tensor in tensors:
        if tensor.HasField("reshape"):
            yield f"{tensor.name}: reshape skipped: clients send and get the ONNX file's shape"
    labelled = [output.name for output in config.output if output.label_filename]
    yield from (
        f"{name}: label_filename skipped: {labelled[0]} has labels" for name in labelled[1:]
    )
    options = config.parameters.keys() - {_LABELS, _LABEL_SCORES}
    empty = set() if options else {"parameters"}
    set_fields = (f.name for f, _ in config.ListFields() if f.name in _LEFT_OUT.keys() - empty)
    for name in dict.fromkeys((*set_fields, *text.unknown)):
        yield f"{name}: skipped: {_LEFT_OUT.get(name, 'Smelt has no such setting')}"


def _batching(batching: pb.ModelDynamicBatching) -> Batching:
    default = batching.default_queue_policy
    policies = batching.priority_queue_policy
    return Batching(
        max_delay_ms=batching.max_queue_delay_microseconds / 1000,
        max_queue=default.max_queue_size or MAX_QUEUE,
        priority_levels=batching.priority_levels,
        default_priority=batching.default_priority_level,
        default_queue_policy=_policy(default, default.max_queue_size),
        queue_policies={n: _policy(policies[n], default.max_queue_size) for n in sorted(policies)},
    )


def _labels(config: pb.ModelConfig, folder: Path) -> tuple[str, ...]:
    """Of the output that has some, a line each."""
    names = [output.label_filename for output in config.output if output.label_filename]
    if not names:
        return ()
    try:
        # Triton's lines end with that character alone, and labels may have others.
        text = (folder / names[0]).read_text(encoding="utf-8")
        return tuple(text.removesuffix("\n").split("\n")) if text else ()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidModelError(f"{folder}: label_filename cannot be read: {error}") from error


def _label_scores(config: pb.ModelConfig) -> LabelScores:
    """As an export writes them."""
    if _LABEL_SCORES not in config.parameters:
        return LabelScores.SOFTMAX
    word = config.parameters[_LABEL_SCORES].string_value
    try:
        return LabelScores(word)
    except ValueError as error:
        words = ", ".join(LabelScores)
        raise InvalidModelError(
            f"config.pbtxt: parameter label_scores '{word}': expected one of {words}"
        ) from error


def _policy(policy: pb.ModelQueuePolicy, default_size: int) -> QueuePolicy:
    # A request that is only put back when its time is over must not be refused.
    is_timed = policy.timeout_action == _REJECT
    timeout_ms = policy.default_timeout_microseconds / 1000 if is_timed else 0.0
    has_own_size = policy.max_queue_size not in (0, default_size)
    return QueuePolicy(
        max_queue=policy.max_queue_size if has_own_size else None,
        default_timeout_ms=timeout_ms,
        max_timeout_ms=0.0 if policy.allow_timeout_override else timeout_ms,
    )


def _policy_words(batching: pb.ModelDynamicBatching) -> Iterator[str]:
    every = (batching.default_queue_policy, *batching.priority_queue_policy.values())
    if any(policy.timeout_action != _REJECT for policy in every):
        yield "timeout_action DELAY: skipped with its timeout: a request waits, or is refused"
    if batching.preserve_ordering:
        yield "preserve_ordering: skipped: each answer is sent as soon as it is there"


def _num_instances(config: pb.ModelConfig) -> int:
    """Instances that Triton has of a model, on all the GPUs that it names."""
    groups = config.instance_group
    return sum(max(group.count, 1) * max(len(group.gpus), 1) for group in groups)
