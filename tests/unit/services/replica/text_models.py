"""Models of tokens with a word-level tokenizer, small enough to see every id."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.manifest import BlobRef, ModelVersion
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe
from services.contracts.model.text_recipe import TextRecipe
from tests.unit.services.replica.models import make_model

WORDS = {word: at for at, word in enumerate(("[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcdefghij"))}
CLS, SEP, A, B = (WORDS[word] for word in ("[CLS]", "[SEP]", "a", "b"))


def write_tokenizer(folder: Path, *, has_specials: bool = True, direction: str = "right") -> Path:
    """A `tokenizer.json` of single letters, each a token, between [CLS] and [SEP]."""
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[PAD]", "[CLS]", "[SEP]"])
    if has_specials:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    if direction != "right":
        tokenizer.enable_truncation(100, direction=direction)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def token_model(
    text: TextRecipe, *, length: int | str = "sequence", datatype: str = "INT64"
) -> ModelVersion:
    """Takes up to 4 rows of up to 8 tokens."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    dims = {"batch": DimRange(min=1, opt=1, max=4)}
    if isinstance(length, str):
        dims[length] = DimRange(min=1, opt=4, max=8)
    model = make_model(
        tuple(TensorSpec(name=n, datatype=datatype, shape=("batch", length)) for n in names),
        (TensorSpec(name="embedding", datatype="FP32", shape=("batch", 2)),),
        Recipe(
            buckets=(Bucket(dims=dims),),
            inputs={
                "input_ids": InputRecipe(pad=WORDS["[PAD]"]),
                "attention_mask": InputRecipe(role=InputRole.MASK),
                "token_type_ids": InputRecipe(),
            },
            text=text,
        ),
    )
    return model.model_copy(update={"tokenizer": BlobRef(sha256="0" * 64, num_bytes=1)})
