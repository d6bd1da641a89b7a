"""MiniLM up to 512 tokens, and requests whose lengths are those of real text."""

import math
from dataclasses import replace

import numpy as np
import torch

from compiler_worker.master.pytorch_source import DimLimits, PyTorchModel
from services.cli.demo.minilm import FIRST_WORD_ID, OUTPUT, VOCABULARY_SIZE, sentence_embedder
from services.cli.demo.minilm import recipe as demo_recipe
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from services.replica.request.infer_call import InferCall
from tests.benchmarks.gpu.sources import SOURCES

MAX_BATCH = 32
MAX_TOKENS = 512
MEDIAN_TOKENS = 40
P99_TOKENS = 400
# 2.326 standard deviations of a normal distribution leave a hundredth above.
_SIGMA = math.log(P99_TOKENS / MEDIAN_TOKENS) / 2.326


def long_embedder() -> PyTorchModel:
    """The demo's model with all of its positions."""
    model = sentence_embedder()
    limits = {**model.dim_limits, "sequence": DimLimits(min=1, max=MAX_TOKENS)}
    return replace(model, dim_limits=limits, recipe=recipe())


def seeded_embedder() -> PyTorchModel:
    """The same architecture with weights from a seed, for machines without the real ones."""
    module = SOURCES["minilm"].make()
    tokens = call_of(16, np.random.default_rng(0)).inputs
    return PyTorchModel(
        module=module,
        example_inputs={
            name: torch.from_numpy(np.repeat(array, 3, axis=0)) for name, array in tokens.items()
        },
        dynamic_dims={name: {0: "batch", 1: "sequence"} for name in tokens},
        dim_limits={
            "batch": DimLimits(min=1, max=MAX_BATCH),
            "sequence": DimLimits(min=1, max=MAX_TOKENS),
        },
        output_names=(OUTPUT,),
        recipe=recipe(),
    )


def recipe() -> Recipe:
    """One box of all shapes, for the kinds that are built in seconds on a CPU."""
    bucket = Bucket(
        dims={
            "batch": DimRange(min=1, opt=8, max=MAX_BATCH),
            "sequence": DimRange(min=1, opt=64, max=MAX_TOKENS),
        }
    )
    changes = {
        "kinds": (EngineKind.ONNXRUNTIME, EngineKind.OPENVINO),
        "precisions": (Precision.FP32, Precision.BF16),
        "buckets": (bucket,),
        # This is about time; that engines answer right is shown elsewhere.
        "ranking": None,
    }
    return demo_recipe().model_copy(update=changes)


def calls(num: int, *, seed: int) -> list[InferCall]:
    """Requests of one row each."""
    rng = np.random.default_rng(seed)
    drawn = rng.lognormal(math.log(MEDIAN_TOKENS), _SIGMA, num)
    return [call_of(int(n), rng) for n in np.clip(drawn.round(), 1, MAX_TOKENS)]


def call_of(length: int, rng: np.random.Generator) -> InferCall:
    """One request of so many tokens."""
    ids = rng.integers(FIRST_WORD_ID, VOCABULARY_SIZE, (1, length))
    return InferCall(
        inputs={"input_ids": ids, "attention_mask": np.ones_like(ids)},
        sizes={"batch": 1, "sequence": length},
        outputs=(OUTPUT,),
    )
