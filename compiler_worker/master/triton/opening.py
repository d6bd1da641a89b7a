"""Opens a model of a Triton repository: its ONNX file, with what its configuration says."""

from pathlib import Path

from compiler_worker.master.opened import CheckDims, OpenedMaster
from compiler_worker.master.source import TritonModel
from compiler_worker.master.stored import store_onnx
from compiler_worker.master.triton.config_recipe import recipe_of, recipe_words
from compiler_worker.master.triton.config_text import read_config
from compiler_worker.master.triton.repository import onnx_file
from compiler_worker.master.triton.shapes import config_buckets, config_limits, tensor_words


def open_triton(
    source: TritonModel, target_dir: Path, check_dims: CheckDims | None
) -> OpenedMaster:
    """Store a version's ONNX file as a master; raises as `open_master` does.

    Args:
        source: a model's folder, and which version of it.
        target_dir: an empty folder for the master's files.
        check_dims: called with the dynamic dimensions of the inputs before what takes long.
    """
    text = read_config(source.folder)
    recipe = recipe_of(text, source.folder)
    words = list(recipe_words(text, recipe))
    stored = store_onnx(onnx_file(source), target_dir, check_dims)
    words += tensor_words(text.config, stored.inputs, stored.outputs)
    limits = config_limits(text.config, stored.inputs)
    buckets = config_buckets(text.config, stored.inputs, limits)
    words += (f"{name}: {limit.min} to {limit.max}" for name, limit in limits.items())
    if buckets:
        words.append(f"taken as buckets {', '.join(bucket.label for bucket in buckets)}")
    elif text.config.model_warmup or text.config.dynamic_batching.preferred_batch_size:
        words.append("warm-ups and preferred sizes: skipped: they do not name every size")
    return OpenedMaster(
        **vars(stored),
        recipe=recipe.model_copy(update={"buckets": buckets}),
        dim_limits=limits,
        remarks=tuple(f"config.pbtxt: {line}" for line in words),
    )
