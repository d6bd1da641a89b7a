"""What the options of `smelt models add` say of text; no library of models is imported for it."""

from dataclasses import dataclass
from pathlib import Path

from services.contracts.model.pooling_choice import Pooling


@dataclass(frozen=True, kw_only=True)
class AskedText:
    """Options of `smelt models add`; None leaves it to the recipe or the folder."""

    tokenizer: Path | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None
