"""The PyTorch models of the GPU benchmark, with seeded weights and inputs.

Legend: B = batch, T = tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import nn

from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe
from tests.benchmarks.gpu import source_modules as modules

NUM_TOKENS = 128
_LONG_TOKENS = 384


@dataclass(frozen=True, kw_only=True)
class Source:
    """One model.

    Attributes:
        make: the module, the same in every process.
        inputs: arrays by name for a batch size.
        batches: sizes that are measured, a bucket each.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int], dict[str, Array]]
    recipe_inputs: dict[str, InputRecipe]
    batches: tuple[int, ...] = (1, 32)

    @property
    def recipe(self) -> Recipe:
        """fp16 engines of kind inductor, one bucket for each batch size."""
        sizes = [DimRange(min=1, opt=batch, max=batch) for batch in self.batches]
        return Recipe(
            kinds=(EngineKind.INDUCTOR,),
            precisions=(Precision.FP16,),
            inputs=self.recipe_inputs,
            buckets=tuple(Bucket(dims={"batch": size}) for size in sizes),
        )


def _tokens(batch: int, num_tokens: int = NUM_TOKENS) -> dict[str, Array]:
    rng = np.random.default_rng(batch)
    lengths = rng.integers(num_tokens // 8, num_tokens + 1, batch)
    lengths[0] = num_tokens
    mask_BT = (np.arange(num_tokens) < lengths[:, None]).astype(np.int64)
    ids_BT = rng.integers(5, modules.NUM_WORDS, (batch, num_tokens), dtype=np.int64)
    return {"input_ids": ids_BT, "attention_mask": mask_BT}


def _full_rows(batch: int) -> dict[str, Array]:
    return {"input_ids": _tokens(batch)["input_ids"]}


def _images(batch: int) -> dict[str, Array]:
    rng = np.random.default_rng(batch)
    return {"x": rng.standard_normal((batch, 3, 224, 224), dtype=np.float32)}


def _clicks(batch: int) -> dict[str, Array]:
    rng = np.random.default_rng(batch)
    numbers = rng.standard_normal((batch, modules.NUM_NUMBERS), dtype=np.float32)
    ids = rng.integers(0, modules.NUM_IDS, (batch, modules.NUM_TABLES), dtype=np.int64)
    return {"numbers": numbers, "ids": ids}


_TEXT = {
    "input_ids": InputRecipe(low=5, high=modules.NUM_WORDS),
    "attention_mask": InputRecipe(role=InputRole.MASK),
}
_IDS = {"input_ids": _TEXT["input_ids"]}
_IMAGE = {"x": InputRecipe(low=-2, high=2)}
_CLICK = {"numbers": InputRecipe(low=-2, high=2), "ids": InputRecipe(low=0, high=modules.NUM_IDS)}
_text = partial(Source, inputs=_tokens, recipe_inputs=_TEXT)
_image = partial(Source, inputs=_images, recipe_inputs=_IMAGE)
SOURCES = {
    "minilm": _text(make=modules.minilm),
    "bert-base": _text(make=modules.bert_base, batches=(32,)),
    "bert-base-384": Source(
        make=modules.bert_base,
        inputs=partial(_tokens, num_tokens=_LONG_TOKENS),
        recipe_inputs=_TEXT,
    ),
    "bert-large": Source(
        make=modules.bert_large,
        inputs=partial(_tokens, num_tokens=_LONG_TOKENS),
        recipe_inputs=_TEXT,
        batches=(32,),
    ),
    "reranker": _text(make=modules.reranker),
    "qwen3": Source(make=modules.qwen3_embedder, inputs=_full_rows, recipe_inputs=_IDS),
    "resnet50": _image(make=modules.resnet50),
    "resnet50-large": _image(make=modules.resnet50, batches=(128, 256)),
    "vit-b16": _image(make=modules.vit_b16),
    "convnext-t": _image(make=modules.convnext_t),
    "efficientnet-b0": _image(make=modules.efficientnet_b0),
    "dlrm": Source(make=modules.dlrm, inputs=_clicks, recipe_inputs=_CLICK),
}
