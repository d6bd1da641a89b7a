"""The input `text` of a model version that has a tokenizer."""

from typing import TYPE_CHECKING, Final

from services.contracts.kserve.byte_strings import BYTES
from services.contracts.kserve.tensor_spec import TensorSpec

if TYPE_CHECKING:  # `smelt infer` needs the names alone
    from services.contracts.model.manifest import ModelVersion

TEXT: Final = "text"
IDS: Final = "input_ids"
MASK: Final = "attention_mask"
TYPES: Final = "token_type_ids"


def text_input(model: "ModelVersion") -> TensorSpec | None:
    """What clients may send in place of the tensors: BYTES [B, 1], or [B, 2] of pairs.

    None of a version without a tokenizer, also where an input of its own is called so.
    """
    text = model.recipe.text
    if model.tokenizer is None or text is None:
        return None
    rows = next(spec.shape[0] for spec in model.master.inputs if spec.name == IDS)
    return TensorSpec(name=TEXT, datatype=BYTES, shape=(rows, 2 if text.pairs else 1))
