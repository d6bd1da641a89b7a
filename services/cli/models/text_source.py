"""What makes a model of tokens take text: of options, recipe or folder, and put into the master."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from compiler_worker.master.hub.folder import HubFolder
from compiler_worker.master.opened import OpenedMaster
from services.cli.models.asked_text import AskedText
from services.contracts.errors import InvalidModelError, InvalidRecipeError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.default_buckets import default_buckets
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe
from services.contracts.model.text_input import IDS, MASK, TEXT, TYPES
from services.contracts.model.text_recipe import TextRecipe

_SENTENCE = "sentence_embedding"
# `[PAD]`, `<pad>`, `<|pad|>`; not a word that has it within.
_PAD = re.compile(r"[\W_]*pad[\W_]*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """A master that takes text, and what it is published with.

    Attributes:
        unpooled: the model as its source has it.
        tokenizer: its file; None of a model that takes none.
        words: what was taken without being asked for, a line each.
    """

    opened: OpenedMaster
    unpooled: OpenedMaster
    recipe: Recipe
    tokenizer: Path | None = None
    words: tuple[str, ...] = ()


def text_source(
    opened: OpenedMaster,
    recipe: Recipe,
    folder: Path,
    asked: AskedText,
    hub: HubFolder | None,
    work_dir: Path,
) -> TextSource:
    """Append the pooling, and say how tokens are padded; unchanged without a tokenizer.

    Args:
        opened: the model.
        recipe: of its owner; may have `text`.
        folder: what paths in the recipe are relative to.
        asked: options.
        hub: the folder of Hugging Face's layout that it is from; None without one.
        work_dir: an empty folder, for the files.

    Raises:
        InvalidRecipeError: options or recipe contradict themselves.
        InvalidModelError: the tokenizer is none, or the model cannot be fed or pooled so.
    """
    words = list(hub.words) if hub else []
    unpooled = opened
    if hub and hub.labels and not recipe.labels:
        labelled = {"labels": hub.labels, "label_scores": hub.label_scores}
        recipe = recipe.model_copy(update=labelled)
    text, is_own = _chosen(recipe, folder, asked, hub)
    if text is None:
        return TextSource(opened=opened, unpooled=opened, recipe=recipe, words=tuple(words))
    if fault := _input_fault(opened.inputs):
        if is_own:
            raise InvalidModelError(f"text is not accepted: {fault}")
        words.append(f"text is not accepted: {fault}")
        return TextSource(opened=opened, unpooled=opened, recipe=recipe, words=tuple(words))
    if text.pooling and not asked.pooling and _SENTENCE in {spec.name for spec in opened.outputs}:
        words.append(f"no pooling is appended: the model has {_SENTENCE}")
        text = text.model_copy(update={"pooling": None, "normalize": False})
    tokenizer = Path(text.tokenizer)
    content, num_special = _tokenizer(tokenizer, is_pair=text.pairs)
    if text.pooling:
        from compiler_worker.master.appended_pooling import with_pooling

        opened = with_pooling(opened, text.pooling, work_dir, has_length_1=text.normalize)
    recipe = _described(recipe, opened, text.model_copy(update={"tokenizer": tokenizer.name}))
    _check_room(text, content, num_special)
    recipe = recipe.model_copy(update={"inputs": _inputs(opened, content) | recipe.inputs})
    return TextSource(
        opened=opened,
        unpooled=unpooled,
        recipe=recipe,
        tokenizer=tokenizer,
        words=tuple(words),
    )


def _chosen(
    recipe: Recipe, folder: Path, asked: AskedText, hub: HubFolder | None
) -> tuple[TextRecipe | None, bool]:
    """The option's, else the recipe's, else the folder's; and whether somebody asked for it."""
    found: dict[str, Any] = {}
    if recipe.text:
        found = recipe.text.model_dump() | {"tokenizer": str(folder / recipe.text.tokenizer)}
    elif hub and hub.text:
        place = hub.text.model_dump()
        found = place | {"tokenizer": str(hub.folder / hub.text.tokenizer)}
    given = {name: value for name, value in vars(asked).items() if value is not None}
    if "tokenizer" in given:
        given["tokenizer"] = str(asked.tokenizer)
    found |= given
    if found and "tokenizer" not in found:
        raise InvalidRecipeError("--pooling and --normalize go with --tokenizer tokenizer.json")
    try:
        text = TextRecipe(**found) if found else None
    except ValidationError as error:
        raise InvalidRecipeError(f"recipe: text: {error.errors()[0]['msg']}") from error
    return text, bool(recipe.text or given)


def _input_fault(inputs: Sequence[TensorSpec]) -> str:
    names = [spec.name for spec in inputs]
    if TEXT in names:
        return f"the model has an input '{TEXT}' of its own; leave the tokenizer out"
    unknown = [name for name in names if name not in (IDS, MASK, TYPES)]
    ranks = {len(spec.shape) for spec in inputs}
    if IDS not in names or unknown or ranks != {2}:
        have = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in inputs)
        return (
            f"a tokenizer makes {IDS}, {MASK} and {TYPES}, each [B, T], the model has {have}; "
            "export it with these"
        )
    return ""


def _tokenizer(path: Path, *, is_pair: bool) -> tuple[dict[str, Any], int]:
    """What a `tokenizer.json` has, once its library read it, and the special tokens of a text."""
    from tokenizers import Tokenizer

    try:
        data = path.read_bytes()
        num_special = Tokenizer.from_buffer(data).num_special_tokens_to_add(is_pair)
        content: dict[str, Any] = json.loads(data)
    except OSError as error:
        raise InvalidModelError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # the library raises nothing narrower
        raise InvalidModelError(
            f"{path} is no tokenizer.json: {error}; a tokenizer of transformers writes one: "
            "tokenizer.save_pretrained(FOLDER)"
        ) from error
    return content, num_special


def _check_room(text: TextRecipe, content: dict[str, Any], num_special: int) -> None:
    """Raise InvalidRecipeError where special tokens are all that a text has room for."""
    most = text.max_tokens or (content.get("truncation") or {}).get("max_length")
    wanted = num_special + (2 if text.pairs else 1)
    if most is not None and most < wanted:
        raise InvalidRecipeError(
            f"text: at most {most} tokens found, of which {text.tokenizer} makes {num_special} "
            f"special ones; wanted are {wanted} or more: set text.max_tokens in the recipe"
        )


def _described(recipe: Recipe, opened: OpenedMaster, text: TextRecipe) -> Recipe:
    """The recipe with its text, and with buckets that reach to the bound that it states."""
    recipe = recipe.model_copy(update={"text": text})
    rows, length = next(spec.shape for spec in opened.inputs if spec.name == IDS)
    if text.max_tokens is None or recipe.buckets or not isinstance(length, str):
        return recipe
    batch_dim = rows if isinstance(rows, str) else None
    dims = default_buckets(opened.inputs, batch_dim, opened.dim_limits)[0].dims
    span = dims[length]
    most = text.max_tokens
    low, opt = (min(size, most) for size in (span.min, span.opt))
    reaching = dims | {length: DimRange(min=low, opt=opt, max=most)}
    return recipe.model_copy(update={"buckets": (Bucket(dims=reaching),)})


def _inputs(opened: OpenedMaster, content: dict[str, Any]) -> dict[str, InputRecipe]:
    """How each input is padded, so that texts of different lengths share a batch."""
    known = {
        IDS: InputRecipe(pad=_pad_id(content)),
        MASK: InputRecipe(role=InputRole.MASK),
        TYPES: InputRecipe(),
    }
    return {spec.name: known[spec.name] for spec in opened.inputs}


def _pad_id(content: dict[str, Any]) -> int:
    """Some models count positions by what is not padding, so it has to be theirs."""
    if padding := content.get("padding"):
        return int(padding["pad_id"])
    added = content.get("added_tokens") or []
    return next((int(a["id"]) for a in added if _PAD.fullmatch(str(a["content"]))), 0)
