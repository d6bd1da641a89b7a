"""What a recipe says of text: the tokenizer, and how token vectors become one vector."""

from typing import Self

from pydantic import Field, model_validator

from services.contracts.model.document import Document
from services.contracts.model.pooling_choice import Pooling


class TextRecipe(Document):
    """How a model of tokens takes text: `text` (BYTES) beside `input_ids` and the like.

    Attributes:
        tokenizer: a `tokenizer.json` as Hugging Face's libraries write it, relative to the recipe's
            file. It is read once, when the model is added, and kept in the store with the version.
        pooling: is appended to the model when it is added: its only output is then `embedding`,
            float32 [B, D]. None leaves its outputs as they are.
        normalize: embeddings get length 1.
        pairs: a text is two, as a reranker's query and document: `text` is [B, 2].
        max_tokens: of a text, special ones included; None takes what `tokenizer.json` says. It is
            never more than the largest bucket; without `buckets` these reach to it.
        truncate: a longer text is cut, as `tokenizer.json` says or else at its end, the longer of
            two first; False refuses it.
    """

    tokenizer: str = Field(min_length=1)
    pooling: Pooling | None = None
    normalize: bool = False
    pairs: bool = False
    max_tokens: int | None = Field(default=None, ge=1)
    truncate: bool = True

    @model_validator(mode="after")
    def _is_pooled(self) -> Self:
        if self.normalize and self.pooling is None:
            raise ValueError(
                "normalize is of an embedding that pooling makes; expected pooling: mean, cls or "
                "last beside it"
            )
        return self
